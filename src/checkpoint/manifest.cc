// Writes and reads the manifest of a checkpoint, and checks files against it.
#include "checkpoint/manifest.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/errors.h"
#include "base/json.h"
#include "checkpoint/safetensors.h"

namespace orthant {
namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

constexpr const char* kFormat = "orthant-checkpoint";
constexpr int kVersion = 1;

std::string hex(uint64_t checksum) { return fmt::format("{:016x}", checksum); }

// Checksum of a manifest without its checksum field.
std::string checksum_without_itself(const Json& object) { return hex(xxh3(object.dump())); }

uint64_t parse_hex(const Json& value, const std::string& where) {
  uint64_t number = 0;
  const std::string text = value.is_string() ? value.get<std::string>() : "";
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, 16);
  if (text.size() != 16 || error != std::errc() || end != text.data() + text.size()) {
    throw DataError(fmt::format("{}: {}, expected a checksum of 16 hexadecimal digits", where, value.dump()));
  }
  return number;
}

int64_t parse_count(const Json& object, const char* key, const std::string& where) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_number_unsigned() || found->get<uint64_t>() >> 62 != 0) {
    throw DataError(fmt::format("{}: {}: expected an integer from 0 on", where, key));
  }
  return found->get<int64_t>();
}

FileDigest parse_digest(const Json& object, const std::string& where) {
  if (!object.is_object()) throw DataError(fmt::format("{}: expected an object", where));
  FileDigest digest{.bytes = parse_count(object, "bytes", where), .block_xxh3 = {}};
  const auto found = object.find("xxh3");
  const int64_t blocks = digest.bytes / kDigestBlockBytes + (digest.bytes % kDigestBlockBytes != 0);
  if (found == object.end() || !found->is_array() || static_cast<int64_t>(found->size()) != blocks) {
    throw DataError(fmt::format("{}: xxh3: expected {} checksums", where, blocks));
  }
  for (const Json& checksum : *found) digest.block_xxh3.push_back(parse_hex(checksum, where + ": xxh3"));
  return digest;
}

void check_relative(const std::string& name, const std::string& source) {
  const fs::path path(name);
  const bool climbs = std::any_of(path.begin(), path.end(), [](const fs::path& part) { return part == ".."; });
  if (name.empty() || name.find('\0') != std::string::npos || path.is_absolute() || climbs) {
    throw DataError(fmt::format("{}: {} is outside the checkpoint", source, printable(name)));
  }
}

}  // namespace

std::string manifest_json(const Manifest& manifest) {
  Json files = Json::object();
  for (const auto& [path, digest] : manifest.files) {
    Json checksums = Json::array();
    for (const uint64_t checksum : digest.block_xxh3) checksums.push_back(hex(checksum));
    files[path] = {{"bytes", digest.bytes}, {"xxh3", std::move(checksums)}};
  }
  Json object = {{"format", kFormat},
                 {"version", kVersion},
                 {"step", manifest.step},
                 {"block_bytes", kDigestBlockBytes},
                 {"files", std::move(files)}};
  object["manifest_xxh3"] = checksum_without_itself(object);
  return object.dump(1) + "\n";
}

Manifest parse_manifest(const std::string& text, const std::string& source) {
  Json object = parse_json(text, source);
  if (!object.is_object() || object.value("format", Json()) != kFormat) {
    throw DataError(fmt::format("{}: expected an object with format = \"{}\"", source, kFormat));
  }
  if (const Json version = object.value("version", Json()); version.is_number_integer() && version > kVersion) {
    throw NewerFormat(
        fmt::format("{}: written by a newer Orthant (format {}, this program reads up to {}); resume with "
                    "that version",
                    source, version.dump(), kVersion));
  }
  if (object.value("version", Json()) != kVersion || object.value("block_bytes", Json()) != kDigestBlockBytes) {
    throw DataError(
        fmt::format("{}: version {} with blocks of {} bytes; this program reads version {} with blocks of {}", source,
                    object.value("version", Json()).dump(), object.value("block_bytes", Json()).dump(), kVersion,
                    kDigestBlockBytes));
  }
  const Json stated = object.value("manifest_xxh3", Json());
  object.erase("manifest_xxh3");
  if (stated != checksum_without_itself(object)) {
    throw DataError(fmt::format("{}: damaged: its checksum is {}, but it states {}", source,
                                checksum_without_itself(object), stated.dump()));
  }
  Manifest manifest{.step = parse_count(object, "step", source), .files = {}};
  const auto files = object.find("files");
  if (files == object.end() || !files->is_object())
    throw DataError(fmt::format("{}: files: expected an object", source));
  for (const auto& [path, digest] : files->items()) {
    check_relative(path, source);
    manifest.files.emplace(path, parse_digest(digest, fmt::format("{}: {}", source, printable(path))));
  }
  return manifest;
}

void check_files(const std::string& directory, const Manifest& manifest, bool checksums) {
  for (const auto& [name, expected] : manifest.files) {
    const fs::path path = fs::path(directory) / name;
    std::error_code error;
    const auto bytes = fs::file_size(path, error);
    if (error)
      throw DataError(
          fmt::format("{}: expected a file of {} bytes: {}", path.string(), expected.bytes, error.message()));
    if (static_cast<int64_t>(bytes) != expected.bytes) {
      throw DataError(fmt::format("{}: offset {}: the file has {} bytes, expected {}", path.string(),
                                  std::min<int64_t>(static_cast<int64_t>(bytes), expected.bytes), bytes,
                                  expected.bytes));
    }
  }
  if (!checksums) return;
  for (const auto& [name, expected] : manifest.files) {
    const fs::path path = fs::path(directory) / name;
    const FileDigest found = digest_file(path);
    if (found == expected) continue;
    const auto [found_block, expected_block] = std::mismatch(found.block_xxh3.begin(), found.block_xxh3.end(),
                                                             expected.block_xxh3.begin(), expected.block_xxh3.end());
    const bool both = found_block != found.block_xxh3.end() && expected_block != expected.block_xxh3.end();
    const int64_t begin = kDigestBlockBytes * (found_block - found.block_xxh3.begin());
    throw DataError(fmt::format("{}: damaged between offset {} and {}: XXH3 {}, expected {}", path.string(), begin,
                                std::min(begin + kDigestBlockBytes, expected.bytes),
                                both ? hex(*found_block) : "for another size", both ? hex(*expected_block) : "none"));
  }
}

}  // namespace orthant
