// safetensors: named tensors as raw little-endian bytes in one file, read by mapping it, written from the caller's
// memory. Layout: u64 N, N bytes of JSON (name -> dtype, shape, data_offsets), data. Source: huggingface/safetensors,
// README.
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
#include <vector>

#include "base/mapped_file.h"
#include "checkpoint/files.h"

namespace orthant {

/// All element types of the format, in its order of alignment (a writer puts the last ones first).
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

/// Bits of one element: 4 for f4, 32 for f32.
int dtype_bits(Dtype dtype);
/// The format's own name: "F32", "BF16".
std::string_view dtype_name(Dtype dtype);
std::optional<Dtype> dtype_from_name(std::string_view name);

/// A name from a file as one line of JSON text in ASCII, at most 200 characters of it: safe to print.
std::string printable(const std::string& name);

/// Where a tensor lies: [begin, end) in bytes from the start of the file's data part. shape [] is a scalar.
struct TensorInfo {
  std::string name;
  Dtype dtype = Dtype::f32;
  std::vector<int64_t> shape;
  int64_t begin = 0;
  int64_t end = 0;
};

/// A tensor as contiguous row-major bytes that somebody else owns. To be written, it may have a way to them instead:
/// `make` is called once, when their turn in the file has come, and they need not outlive the next tensor's.
struct TensorBytes {
  std::string name;
  Dtype dtype = Dtype::f32;
  std::vector<int64_t> shape;
  std::span<const std::byte> bytes = {};
  std::function<std::span<const std::byte>()> make = {};
};
/// Of a tensor so large; LogicError where that is no whole number of bytes, or more than can be counted.
int64_t size_bytes(const TensorBytes& tensor);

/// The header of a file: tensors in the order of their data, and where the data part starts (bytes from the file's
/// start).
struct SafetensorsHeader {
  std::vector<TensorInfo> tensors;
  std::map<std::string, std::string> metadata;
  int64_t data_begin = 0;
};

/// Checks everything the format demands: sizes, JSON, known dtypes, shapes without overflow, tensors that tile the data
/// exactly. `head` is the file's beginning (at least its header, or all there is), `file_bytes` its whole size.
/// Throws DataError("source: offset N: ...").
SafetensorsHeader parse_safetensors_header(std::span<const std::byte> head, int64_t file_bytes,
                                           const std::string& source);

/// Writes tensors (any order; the file has them by dtype, then name) through an OutputFile: temporary, fsync, rename.
/// Bytes go from the caller's memory to the file, tensor by tensor, and none is copied. LogicError when a tensor's
/// bytes do not fit its shape or a name comes twice; DataError when the system refuses, and then `path` is as it was.
FileDigest write_safetensors(const std::string& path, std::span<const TensorBytes> tensors,
                             const std::map<std::string, std::string>& metadata = {{"format", "pt"}});

/// A mapped file, all of whose header is checked before anything of it can be used.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::string& path);

  const std::string& path() const { return file_.path(); }
  const std::map<std::string, std::string>& metadata() const { return header_.metadata; }
  /// In the order of the data.
  std::span<const TensorInfo> tensors() const { return header_.tensors; }
  bool contains(const std::string& name) const { return index_.contains(name); }
  /// A view into the mapping, valid while this object lives (moving it keeps views valid). Throws DataError when
  /// absent.
  TensorBytes tensor(const std::string& name) const;
  std::span<const std::byte> bytes(const std::string& name) const { return tensor(name).bytes; }

 private:
  MappedFile file_;
  SafetensorsHeader header_;
  std::unordered_map<std::string, std::size_t> index_;
};

/// Several files read as one, by global tensor name (shards of a model, of several ranks).
class TensorSet {
 public:
  TensorSet() = default;
  /// Opens and checks all files. Throws DataError when one is damaged or a name is in two of them.
  explicit TensorSet(std::span<const std::string> paths);

  /// All names, sorted.
  std::vector<std::string> names() const;
  bool contains(const std::string& name) const { return index_.contains(name); }
  /// As SafetensorsFile::tensor.
  TensorBytes tensor(const std::string& name) const;
  std::span<const std::byte> bytes(const std::string& name) const { return tensor(name).bytes; }
  std::span<const SafetensorsFile> files() const { return files_; }

 private:
  std::vector<SafetensorsFile> files_;
  std::unordered_map<std::string, std::size_t> index_;  // name -> file
};

}  // namespace orthant
