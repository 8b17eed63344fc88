// The safetensors format: named tensors as raw little-endian bytes in one file. Files are read by mapping them, and
// written directly from the caller's memory. Layout: u64 N, N bytes of JSON (name -> dtype, shape, data_offsets), data.
// Source: huggingface/safetensors, README.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/mapped_file.h"
#include "checkpoint/files.h"

namespace orthant {

/// All element types of the format, in its alignment order. A writer stores the last ones first.
enum class Dtype {
  boolean,
  f4,
  f6_e2m3,
  f6_e3m2,
  u8,
  i8,
  f8_e5m2,
  f8_e4m3,
  f8_e8m0,
  f8_e4m3fnuz,
  f8_e5m2fnuz,
  i16,
  u16,
  f16,
  bf16,
  i32,
  u32,
  f32,
  c64,
  f64,
  i64,
  u64
};

/// Bits of one element, for example 4 for f4 and 32 for f32.
int dtype_bits(Dtype dtype);
/// The name in the format, for example "F32" or "BF16".
std::string_view dtype_name(Dtype dtype);
std::optional<Dtype> dtype_from_name(std::string_view name);

/// Makes a name from a file safe to print: one line of ASCII JSON text, from at most 200 bytes of the name.
std::string printable(const std::string& name);

/// Position of a tensor: [begin, end) in bytes from the start of the file's data part. An empty shape is a scalar.
struct TensorInfo {
  std::string name;
  Dtype dtype = Dtype::f32;
  std::vector<int64_t> shape;
  int64_t begin = 0;
  int64_t end = 0;
};

/// A tensor as contiguous row-major bytes, which it does not own. A tensor to write may have `make` instead: it is
/// called once, when the tensor's turn in the file comes. Its bytes must stay valid only until the next tensor's call.
struct TensorBytes {
  std::string name;
  Dtype dtype = Dtype::f32;
  std::vector<int64_t> shape;
  std::span<const std::byte> bytes = {};
  std::function<std::span<const std::byte>()> make = {};
};
/// Size of a tensor of this dtype and shape. LogicError if it is no whole number of bytes, or overflows.
int64_t size_bytes(const TensorBytes& tensor);

/// The header of a file: its tensors in the order of their data, and the offset of the data part in bytes.
struct SafetensorsHeader {
  std::vector<TensorInfo> tensors;
  std::map<std::string, std::string> metadata;
  int64_t data_begin = 0;
};

/// Checks all laws of the format: sizes, JSON, known dtypes, shapes without overflow, tensors that tile the data
/// exactly. `head` is the beginning of the file and must contain its header; `file_bytes` is the size of the file.
/// Throws DataError("source: offset N: ...").
SafetensorsHeader parse_safetensors_header(std::span<const std::byte> head, int64_t file_bytes,
                                           const std::string& source);

/// A tensor of a file that was written. `xxh3` is the hash of its elements; see tensor_hash.h.
struct WrittenTensor {
  Dtype dtype = Dtype::f32;
  std::vector<int64_t> shape;
  uint64_t xxh3 = 0;
};
/// A file that was written, and its tensors by name. A file of another format has none.
struct WrittenFile {
  FileDigest digest;
  std::map<std::string, WrittenTensor> tensors = {};
};

/// Writes a file of known tensors one after the other through an OutputFile (temporary file, fsync, rename). Bytes go
/// from the caller's memory to the file without a copy. Destroyed without commit(), it leaves no file.
class SafetensorsWriter {
 public:
  /// Writes the header. `tensors` need no bytes yet, and must be sorted by dtype, the last of Dtype first, and then by
  /// name. LogicError if they are not, or if two have one name; DataError on a system error.
  SafetensorsWriter(const std::string& path, std::span<const TensorBytes> tensors,
                    const std::map<std::string, std::string>& metadata = {{"format", "pt"}});
  /// Writes the next tensor. LogicError if the number of bytes is not that of its shape.
  void write(std::span<const std::byte> bytes);
  /// Ends the file. LogicError if a tensor is missing.
  WrittenFile commit();

 private:
  OutputFile file_;
  std::vector<TensorBytes> tensors_;
  size_t next_ = 0;
  WrittenFile written_;
};

/// Writes all tensors, in any order, with a SafetensorsWriter.
WrittenFile write_safetensors(const std::string& path, std::span<const TensorBytes> tensors,
                              const std::map<std::string, std::string>& metadata = {{"format", "pt"}});

/// A mapped file. Its header is checked completely before any tensor can be used.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::string& path);

  const std::string& path() const { return file_.path(); }
  const std::map<std::string, std::string>& metadata() const { return header_.metadata; }
  /// All bytes before the data of the first tensor.
  std::span<const std::byte> head() const { return file_.bytes().first(static_cast<std::size_t>(header_.data_begin)); }
  /// In the order of their data.
  std::span<const TensorInfo> tensors() const { return header_.tensors; }
  bool contains(const std::string& name) const { return index_.contains(name); }
  /// A view into the mapping, valid while this object lives; moving the object keeps views valid. Throws DataError if
  /// there is no such tensor.
  TensorBytes tensor(const std::string& name) const;
  std::span<const std::byte> bytes(const std::string& name) const { return tensor(name).bytes; }

 private:
  MappedFile file_;
  SafetensorsHeader header_;
  std::unordered_map<std::string, std::size_t> index_;
};

/// Reads all bytes of a file once, and returns what write_safetensors() returns for a file with these bytes.
WrittenFile digest_safetensors(const SafetensorsFile& file);

/// The form of a tensor, and the file that holds it.
struct TensorEntry {
  std::string path;
  Dtype dtype = Dtype::f32;
  std::vector<int64_t> shape;
};

/// Several files read as one, by global tensor name, for example the shards of a model. For one thread at a time.
class TensorSet {
 public:
  TensorSet() = default;
  /// Opens and checks all files. Throws DataError if one is damaged, or if a name is in two of them.
  explicit TensorSet(std::span<const std::string> paths);
  /// The tensors that a manifest lists, by name. tensor() opens a file when it first needs one of its tensors.
  explicit TensorSet(std::map<std::string, TensorEntry> entries) : entries_(std::move(entries)) {}

  /// All names, sorted.
  std::vector<std::string> names() const;
  bool contains(const std::string& name) const { return entries_.contains(name); }
  /// Opens no file. Throws DataError if there is no such tensor.
  const TensorEntry& entry(const std::string& name) const;
  /// As SafetensorsFile::tensor(). Also throws DataError if the tensor's file is damaged or is not the listed one.
  TensorBytes tensor(const std::string& name) const;
  std::span<const std::byte> bytes(const std::string& name) const { return tensor(name).bytes; }

 private:
  std::map<std::string, TensorEntry> entries_;            // by name
  mutable std::map<std::string, SafetensorsFile> files_;  // those opened so far, by path
};

}  // namespace orthant
