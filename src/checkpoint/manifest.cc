// Writes and reads the manifest of a checkpoint, and checks files against it.
#include "checkpoint/manifest.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/errors.h"
#include "base/json.h"
#include "base/mapped_file.h"
#include "base/terminal_text.h"
#include "checkpoint/safetensors.h"

namespace orthant {
namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

constexpr const char* kFormat = "orthant-checkpoint";
constexpr int kVersion = 2;  // version 1 has no tensors

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

ManifestTensor parse_tensor(const Json& object, const Manifest& manifest, const std::string& where) {
  const auto field = [&](const char* key) {
    const auto found = object.is_object() ? object.find(key) : object.end();
    if (!object.is_object() || found == object.end())
      throw DataError(fmt::format("{}: expected a field {}", where, key));
    return *found;
  };
  ManifestTensor tensor;
  tensor.xxh3 = parse_hex(field("xxh3"), where + ": xxh3");
  const Json name = field("dtype"), shape = field("shape"), file = field("file");
  const auto dtype = name.is_string() ? dtype_from_name(name.get<std::string>()) : std::nullopt;
  if (!dtype) throw DataError(fmt::format("{}: dtype: expected a dtype of safetensors, such as F32", where));
  tensor.dtype = *dtype;
  const auto is_size = [](const Json& size) { return size.is_number_unsigned() && size.get<uint64_t>() >> 62 == 0; };
  if (!shape.is_array() || !std::all_of(shape.begin(), shape.end(), is_size)) {
    throw DataError(fmt::format("{}: shape: expected a list of integers from 0 on", where));
  }
  tensor.shape = shape.get<std::vector<int64_t>>();
  if (!file.is_string() || !manifest.files.contains(file.get<std::string>())) {
    throw DataError(fmt::format("{}: file: expected one of the manifest's files", where));
  }
  tensor.file = file.get<std::string>();
  return tensor;
}

void check_relative(const std::string& name, const std::string& source) {
  const fs::path path(name);
  const bool climbs = std::any_of(path.begin(), path.end(), [](const fs::path& part) { return part == ".."; });
  if (name.empty() || name.find('\0') != std::string::npos || path.is_absolute() || climbs) {
    throw DataError(fmt::format("{}: {} is outside the checkpoint", source, printable(name)));
  }
}

}  // namespace

void add_file(Manifest& manifest, const std::string& path, const WrittenFile& file) {
  const bool is_new = manifest.files.emplace(path, file.digest).second;
  ORTHANT_CHECK(is_new, path);
  for (const auto& [name, tensor] : file.tensors) {
    const auto [other, is_first] =
        manifest.tensors.emplace(name, ManifestTensor{tensor.dtype, tensor.shape, path, tensor.xxh3});
    ORTHANT_CHECK(is_first, name, path, other->second.file);
  }
}

std::string manifest_json(const Manifest& manifest) {
  Json files = Json::object();
  for (const auto& [path, digest] : manifest.files) {
    Json checksums = Json::array();
    for (const uint64_t checksum : digest.block_xxh3) checksums.push_back(hex(checksum));
    files[path] = {{"bytes", digest.bytes}, {"xxh3", std::move(checksums)}};
  }
  Json tensors = Json::object();
  auto& members = tensors.get_ref<Json::object_t&>();  // emplace_back() skips the search for an equal name
  for (const auto& [name, tensor] : manifest.tensors) {
    members.emplace_back(name, Json{{"dtype", dtype_name(tensor.dtype)},
                                    {"shape", tensor.shape},
                                    {"file", tensor.file},
                                    {"xxh3", hex(tensor.xxh3)}});
  }
  Json object = {{"format", kFormat},         {"version", kVersion},
                 {"step", manifest.step},     {"block_bytes", kDigestBlockBytes},
                 {"files", std::move(files)}, {"tensors", std::move(tensors)}};
  object["manifest_xxh3"] = checksum_without_itself(object);
  return object.dump(1) + "\n";
}

Manifest parse_manifest(const std::string& text, const std::string& source) {
  Json object = parse_json(text, source);
  if (!object.is_object() || object.value("format", Json()) != kFormat) {
    throw DataError(fmt::format("{}: expected an object with format = \"{}\"", source, kFormat));
  }
  const Json version = object.value("version", Json());
  if (version.is_number_integer() && version > kVersion) {
    throw NewerFormat(
        fmt::format("{}: written by a newer Orthant (format {}, this program reads up to {}); use that version", source,
                    version.dump(), kVersion));
  }
  if ((version != 1 && version != kVersion) || object.value("block_bytes", Json()) != kDigestBlockBytes) {
    throw DataError(
        fmt::format("{}: version {} with blocks of {} bytes; this program reads versions 1 to {} with blocks of {}",
                    source, version.dump(), object.value("block_bytes", Json()).dump(), kVersion, kDigestBlockBytes));
  }
  const Json stated = object.value("manifest_xxh3", Json());
  object.erase("manifest_xxh3");
  if (stated != checksum_without_itself(object)) {
    throw DataError(fmt::format("{}: damaged: its checksum is {}, but it states {}", source,
                                checksum_without_itself(object), stated.dump()));
  }
  Manifest manifest{.step = parse_count(object, "step", source), .files = {}, .tensors = {}};
  const auto files = object.find("files");
  if (files == object.end() || !files->is_object())
    throw DataError(fmt::format("{}: files: expected an object", source));
  for (const auto& [path, digest] : files->items()) {
    check_relative(path, source);
    manifest.files.emplace(path, parse_digest(digest, fmt::format("{}: {}", source, printable(path))));
  }
  if (version == 1) return manifest;
  const auto tensors = object.find("tensors");
  if (tensors == object.end() || !tensors->is_object())
    throw DataError(fmt::format("{}: tensors: expected an object", source));
  for (const auto& [name, tensor] : tensors->items()) {
    manifest.tensors.emplace(name,
                             parse_tensor(tensor, manifest, fmt::format("{}: tensor {}", source, printable(name))));
  }
  return manifest;
}

Manifest read_manifest(const std::string& directory) {
  const std::string path = fs::path(directory) / kManifestFile;
  if (!fs::exists(path)) {
    throw DataError(fmt::format("{}: missing; {} is not a complete checkpoint of Orthant", path, directory));
  }
  Manifest manifest = parse_manifest(read_file(path), path);
  for (const char* name : {"config.json", kStateFile, kConfigFile}) {
    if (!manifest.files.contains(name)) throw DataError(fmt::format("{}: does not list {}", path, name));
  }
  return manifest;
}

void check_size(const std::string& path, const FileDigest& expected) {
  std::error_code error;
  const auto bytes = fs::file_size(path, error);
  if (error) {
    throw DataError(
        fmt::format("{}: expected a file of {} bytes: {}", escape_for_terminal(path), expected.bytes, error.message()));
  }
  if (static_cast<int64_t>(bytes) == expected.bytes) return;
  throw DataError(fmt::format("{}: offset {}: the file has {} bytes, expected {}", path,
                              std::min<int64_t>(static_cast<int64_t>(bytes), expected.bytes), bytes, expected.bytes));
}

void check_digest(const std::string& path, const FileDigest& found, const FileDigest& expected) {
  if (found == expected) return;
  const auto [found_block, expected_block] = std::mismatch(found.block_xxh3.begin(), found.block_xxh3.end(),
                                                           expected.block_xxh3.begin(), expected.block_xxh3.end());
  const bool both = found_block != found.block_xxh3.end() && expected_block != expected.block_xxh3.end();
  const int64_t begin = kDigestBlockBytes * (found_block - found.block_xxh3.begin());
  throw DataError(fmt::format("{}: damaged between offset {} and {}: XXH3 {}, expected {}", path, begin,
                              std::min(begin + kDigestBlockBytes, expected.bytes),
                              both ? hex(*found_block) : "for another size", both ? hex(*expected_block) : "none"));
}

void check_files(const std::string& directory, const Manifest& manifest, ChecksummedFiles checksummed) {
  const fs::path folder(directory);
  int64_t number = 0;
  for (const auto& [name, expected] : manifest.files) {
    if (checksummed.every == 0 || checksummed.include(number++)) check_size(folder / name, expected);
  }
  number = 0;
  for (const auto& [name, expected] : manifest.files) {
    if (checksummed.include(number++)) check_digest(folder / name, digest_file(folder / name), expected);
  }
}

}  // namespace orthant
