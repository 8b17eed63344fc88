// Writes safetensors files, and gives access to the tensors of mapped ones.
#include "checkpoint/safetensors.h"

#include <algorithm>
#include <bit>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "base/errors.h"
#include "checkpoint/tensor_hash.h"

namespace orthant {
namespace {

static_assert(std::endian::native == std::endian::little, "tensors are written as they lie in memory");

// JSON text of a string. Names are chosen by this program, so a name that is not UTF-8 is a bug.
std::string quoted(const std::string& text) {
  try {
    return nlohmann::json(text).dump();
  } catch (const nlohmann::json::exception& error) {
    throw LogicError(fmt::format("safetensors: a name or a value is not UTF-8: {}", error.what()));
  }
}

void check_bytes(const TensorBytes& tensor, std::span<const std::byte> bytes) {
  ORTHANT_CHECK(static_cast<uint64_t>(size_bytes(tensor)) == bytes.size(), tensor.name, bytes.size());
}

// The order of tensors in a file.
bool is_before(const TensorBytes& a, const TensorBytes& b) {
  return std::tie(b.dtype, a.name) < std::tie(a.dtype, b.name);
}

void check_tensors(std::span<const TensorBytes> tensors) {
  std::vector<std::string_view> names;
  for (const TensorBytes& tensor : tensors) {
    ORTHANT_CHECK(tensor.name != "__metadata__", tensor.name);
    names.push_back(tensor.name);
  }
  ORTHANT_CHECK(std::is_sorted(tensors.begin(), tensors.end(), is_before), names.size());
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  ORTHANT_CHECK(twice == names.end(), *twice);
}

std::string header_text(std::span<const TensorBytes> tensors, const std::map<std::string, std::string>& metadata) {
  std::string text = "{";
  if (!metadata.empty()) {
    text += "\"__metadata__\":{";
    for (const auto& [key, value] : metadata) text += fmt::format("{}:{},", quoted(key), quoted(value));
    text.back() = '}';
    text += ',';
  }
  int64_t begin = 0;
  for (const TensorBytes& tensor : tensors) {
    const int64_t end = begin + size_bytes(tensor);
    text += fmt::format("{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}},", quoted(tensor.name),
                        dtype_name(tensor.dtype), fmt::join(tensor.shape, ","), begin, end);
    begin = end;
  }
  if (text.back() == ',') text.pop_back();
  text += '}';
  text.resize((text.size() + 7) / 8 * 8, ' ');
  return text;
}

// Passes a tensor's bytes on in pieces and returns their hash. A piece stays in a core's cache between two checksums.
template <typename Sink>
uint64_t hash_and_pass(std::span<const std::byte> bytes, Sink&& sink) {
  TensorHasher hasher;
  while (!bytes.empty()) {
    const auto piece = bytes.first(std::min(bytes.size(), static_cast<std::size_t>(kTensorBlockBytes)));
    hasher.add(piece);
    sink(piece);
    bytes = bytes.subspan(piece.size());
  }
  return hasher.finish();
}

}  // namespace

int64_t size_bytes(const TensorBytes& tensor) {
  int64_t bits = dtype_bits(tensor.dtype);
  for (const int64_t size : tensor.shape) {
    ORTHANT_CHECK(size >= 0 && !__builtin_mul_overflow(bits, size, &bits), tensor.name, size);
  }
  ORTHANT_CHECK(bits % 8 == 0, tensor.name, bits);
  return bits / 8;
}

SafetensorsWriter::SafetensorsWriter(const std::string& path, std::span<const TensorBytes> tensors,
                                     const std::map<std::string, std::string>& metadata)
    : file_(path), tensors_(tensors.begin(), tensors.end()) {
  check_tensors(tensors);
  const std::string text = header_text(tensors, metadata);
  const uint64_t length = text.size();
  file_.write(std::as_bytes(std::span(&length, 1)));
  file_.write(text);
}

void SafetensorsWriter::write(std::span<const std::byte> bytes) {
  ORTHANT_CHECK(next_ < tensors_.size(), next_);
  const TensorBytes& tensor = tensors_[next_++];
  check_bytes(tensor, bytes);
  const uint64_t xxh3 = hash_and_pass(bytes, [&](std::span<const std::byte> piece) { file_.write(piece); });
  written_.tensors.emplace(tensor.name, WrittenTensor{tensor.dtype, tensor.shape, xxh3});
}

WrittenFile SafetensorsWriter::commit() {
  ORTHANT_CHECK(next_ == tensors_.size(), next_, tensors_.size());
  written_.digest = file_.commit();
  return std::move(written_);
}

WrittenFile write_safetensors(const std::string& path, std::span<const TensorBytes> tensors,
                              const std::map<std::string, std::string>& metadata) {
  std::vector<TensorBytes> ordered(tensors.begin(), tensors.end());
  std::sort(ordered.begin(), ordered.end(), is_before);
  for (const TensorBytes& tensor : ordered) {
    if (!tensor.make) check_bytes(tensor, tensor.bytes);  // before anything is written
  }
  SafetensorsWriter file(path, ordered, metadata);
  for (const TensorBytes& tensor : ordered) file.write(tensor.make ? tensor.make() : tensor.bytes);
  return file.commit();
}

SafetensorsFile::SafetensorsFile(const std::string& path)
    : file_(path),
      header_(parse_safetensors_header(file_.bytes(), static_cast<int64_t>(file_.bytes().size()), path)) {
  index_.reserve(header_.tensors.size());
  for (std::size_t i = 0; i < header_.tensors.size(); ++i) index_.emplace(header_.tensors[i].name, i);
}

TensorBytes SafetensorsFile::tensor(const std::string& name) const {
  const auto found = index_.find(name);
  if (found == index_.end()) throw DataError(fmt::format("{}: no tensor {}", path(), printable(name)));
  const TensorInfo& info = header_.tensors[found->second];
  const auto bytes = file_.bytes().subspan(static_cast<std::size_t>(header_.data_begin + info.begin),
                                           static_cast<std::size_t>(info.end - info.begin));
  return {.name = info.name, .dtype = info.dtype, .shape = info.shape, .bytes = bytes};
}

WrittenFile digest_safetensors(const SafetensorsFile& file) {
  WrittenFile found;
  Digester digester;
  digester.add(file.head());
  for (const TensorInfo& tensor : file.tensors()) {
    const std::span<const std::byte> bytes = file.bytes(tensor.name);
    const uint64_t xxh3 = hash_and_pass(bytes, [&](std::span<const std::byte> piece) { digester.add(piece); });
    forget(bytes);
    found.tensors.emplace(tensor.name, WrittenTensor{tensor.dtype, tensor.shape, xxh3});
  }
  found.digest = digester.finish();
  return found;
}

TensorSet::TensorSet(std::span<const std::string> paths) {
  for (const std::string& path : paths) {
    SafetensorsFile file(path);
    for (const TensorInfo& tensor : file.tensors()) {
      const auto [other, is_new] = entries_.emplace(tensor.name, TensorEntry{path, tensor.dtype, tensor.shape});
      if (!is_new) {
        throw DataError(fmt::format("{}: tensor {} is also in {}", path, printable(tensor.name), other->second.path));
      }
    }
    files_.emplace(path, std::move(file));
  }
}

std::vector<std::string> TensorSet::names() const {
  std::vector<std::string> names;
  for (const auto& [name, entry] : entries_) names.push_back(name);
  return names;
}

const TensorEntry& TensorSet::entry(const std::string& name) const {
  const auto found = entries_.find(name);
  if (found != entries_.end()) return found->second;
  std::set<std::string> paths;
  for (const auto& [other, entry] : entries_) paths.insert(entry.path);
  std::string where = paths.empty() ? "no files" : *paths.begin();
  if (paths.size() > 1) where += fmt::format(" and {} more files", paths.size() - 1);
  throw DataError(fmt::format("{}: no tensor {}", where, printable(name)));
}

TensorBytes TensorSet::tensor(const std::string& name) const {
  const TensorEntry& listed = entry(name);
  const SafetensorsFile& file = files_.try_emplace(listed.path, listed.path).first->second;
  TensorBytes tensor = file.tensor(name);
  if (tensor.dtype == listed.dtype && tensor.shape == listed.shape) return tensor;
  throw DataError(
      fmt::format("{}: tensor {} is not the one that the manifest lists; orthant checkpoint verify reports all damages",
                  listed.path, printable(name)));
}

}  // namespace orthant
