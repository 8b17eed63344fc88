// Reads and checks the header of a safetensors file. It handles JSON events instead of building a tree, because a
// header may be 100 MB of hostile text.
#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <tuple>
#include <unordered_set>
#include <utility>

#include "base/errors.h"
#include "checkpoint/safetensors.h"

namespace orthant {
namespace {

constexpr int64_t kHeaderLimitBytes = 100'000'000;
constexpr int64_t kLengthBytes = 8;

class HeaderHandler : public nlohmann::json_sax<nlohmann::json> {
 public:
  HeaderHandler(SafetensorsHeader& header, const std::string& source) : header_(header), source_(source) {}

  bool start_object(std::size_t) override {
    if (at_ == At::file) return at_ = At::names, true;
    if (at_ != At::names_value) refuse("an object");
    if (name_ == "__metadata__") return at_ = At::metadata, true;
    header_.tensors.push_back({.name = name_});
    fields_ = 0;
    return at_ = At::fields, true;
  }

  bool end_object() override {
    if (at_ == At::fields && fields_ != 7) refuse("the end of an object without all of dtype, shape and data_offsets");
    at_ = at_ == At::names ? At::file : At::names;
    return true;
  }

  bool key(std::string& text) override {
    if (at_ == At::names) {
      name_ = std::move(text);
      if (!names_.insert(name_).second) refuse("the same name for the second time");
      return at_ = At::names_value, true;
    }
    field_ = std::move(text);
    if (at_ == At::metadata) return at_ = At::metadata_value, true;
    constexpr std::array<std::pair<std::string_view, At>, 3> kFields{
        {{"dtype", At::dtype}, {"shape", At::shape}, {"data_offsets", At::offsets}}};
    for (std::size_t i = 0; i < kFields.size(); ++i) {
      if (field_ != kFields[i].first) continue;
      if ((fields_ >> i & 1) != 0) refuse("the same field for the second time");
      fields_ |= 1 << i;
      return at_ = kFields[i].second, true;
    }
    refuse("an unknown field");
  }

  bool string(std::string& text) override {
    if (at_ == At::metadata_value) {
      if (!header_.metadata.emplace(field_, std::move(text)).second) refuse("the same key for the second time");
      return at_ = At::metadata, true;
    }
    if (at_ != At::dtype) refuse("a string");
    const auto dtype = dtype_from_name(text);
    if (!dtype) refuse(fmt::format("the dtype {}, which the format does not have,", printable(text)));
    header_.tensors.back().dtype = *dtype;
    return at_ = At::fields, true;
  }

  bool start_array(std::size_t) override {
    if (at_ != At::shape && at_ != At::offsets) refuse("an array");
    at_ = at_ == At::shape ? At::shape_items : At::offset_items;
    offsets_ = 0;
    return true;
  }

  bool end_array() override {
    if (at_ == At::offset_items && offsets_ != 2) refuse(fmt::format("{} data_offsets instead of 2", offsets_));
    return at_ = At::fields, true;
  }

  bool number_unsigned(uint64_t value) override {
    if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) refuse(fmt::format("the number {}", value));
    const auto number = static_cast<int64_t>(value);
    if (at_ == At::shape_items) return header_.tensors.back().shape.push_back(number), true;
    if (at_ != At::offset_items || offsets_ >= 2) refuse("a number");
    (offsets_++ == 0 ? header_.tensors.back().begin : header_.tensors.back().end) = number;
    return true;
  }

  bool null() override { refuse("null"); }
  bool boolean(bool) override { refuse("a boolean"); }
  bool number_integer(int64_t value) override { refuse(fmt::format("the number {}", value)); }
  bool number_float(double, const std::string& text) override { refuse(fmt::format("the number {}", text)); }
  bool binary(nlohmann::json::binary_t&) override { refuse("binary data"); }
  bool parse_error(std::size_t position, const std::string& token, const nlohmann::json::exception&) override {
    throw DataError(fmt::format("{}: offset {}: the header is not valid JSON near {}", source_,
                                kLengthBytes + static_cast<int64_t>(position), printable(token)));
  }

 private:
  // Position of the next event in the header.
  enum class At {
    file,
    names,
    names_value,
    metadata,
    metadata_value,
    fields,
    dtype,
    shape,
    shape_items,
    offsets,
    offset_items
  };

  [[noreturn]] void refuse(const std::string& found) const {
    throw DataError(fmt::format(
        "{}: offset {}: the header has {} at {}{}; expected name -> {{dtype, shape, data_offsets}}, sizes as integers "
        "from 0 on, and text in __metadata__",
        source_, kLengthBytes, found, printable(name_),
        field_.empty() ? "" : fmt::format(", field {}", printable(field_))));
  }

  SafetensorsHeader& header_;
  const std::string& source_;
  At at_ = At::file;
  std::string name_, field_;
  unsigned fields_ = 0;  // bit i is set if field i of the current tensor has been read
  int offsets_ = 0;
  std::unordered_set<std::string> names_;
};

// Shape and dtype must match the number of bytes between the offsets.
void check_size(const TensorInfo& tensor, const std::string& source) {
  int64_t bits = dtype_bits(tensor.dtype);
  bool overflow = false;
  for (const int64_t size : tensor.shape) overflow = overflow || __builtin_mul_overflow(bits, size, &bits);
  if (overflow)
    throw DataError(fmt::format("{}: tensor {}: its shape has more than 2^63 bits", source, printable(tensor.name)));
  if (bits % 8 != 0) {
    throw DataError(
        fmt::format("{}: tensor {}: {} bits do not fill whole bytes", source, printable(tensor.name), bits));
  }
  if (tensor.begin > tensor.end || tensor.end - tensor.begin != bits / 8) {
    throw DataError(fmt::format("{}: tensor {}: data_offsets [{}, {}], expected {} bytes for its dtype {} and shape",
                                source, printable(tensor.name), tensor.begin, tensor.end, bits / 8,
                                dtype_name(tensor.dtype)));
  }
}

// Sorts tensors by offset. Each must start where the previous one ends, and the last must end with the file.
void check_tiling(SafetensorsHeader& header, int64_t file_bytes, const std::string& source) {
  std::sort(header.tensors.begin(), header.tensors.end(), [](const TensorInfo& a, const TensorInfo& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  int64_t expected = 0;
  for (const TensorInfo& tensor : header.tensors) {
    if (tensor.begin != expected) {
      throw DataError(fmt::format("{}: offset {}: tensor {} starts at {} of the data, expected {} ({})", source,
                                  header.data_begin + expected, printable(tensor.name), tensor.begin, expected,
                                  tensor.begin < expected ? "tensors overlap" : "a gap between tensors"));
    }
    expected = tensor.end;
  }
  const int64_t data_bytes = file_bytes - header.data_begin;
  if (expected != data_bytes) {
    throw DataError(fmt::format("{}: offset {}: the file has {} bytes of data, expected {} ({})", source,
                                header.data_begin + std::min(expected, data_bytes), data_bytes, expected,
                                data_bytes < expected ? "it was truncated" : "data follows the last tensor"));
  }
}

}  // namespace

SafetensorsHeader parse_safetensors_header(std::span<const std::byte> head, int64_t file_bytes,
                                           const std::string& source) {
  if (file_bytes < kLengthBytes || head.size() < static_cast<std::size_t>(kLengthBytes)) {
    throw DataError(fmt::format("{}: {} bytes, too short for a safetensors file", source, file_bytes));
  }
  uint64_t length = 0;  // little-endian, like all supported machines
  std::memcpy(&length, head.data(), sizeof length);
  const uint64_t available = std::min<uint64_t>(head.size(), static_cast<uint64_t>(file_bytes)) - kLengthBytes;
  if (length > static_cast<uint64_t>(kHeaderLimitBytes) || length > available) {
    throw DataError(fmt::format("{}: offset 0: a header of {} bytes, expected at most {}", source, length,
                                std::min<uint64_t>(kHeaderLimitBytes, available)));
  }
  const std::string_view text(reinterpret_cast<const char*>(head.data()) + kLengthBytes, length);
  if (text.empty() || text.front() != '{') {
    throw DataError(fmt::format("{}: offset {}: expected {{ at the start of the header", source, kLengthBytes));
  }
  // The JSON parser takes a zero byte for the end of its input, and would ignore the text after it.
  if (const auto zero = text.find('\0'); zero != std::string_view::npos) {
    throw DataError(fmt::format("{}: offset {}: a zero byte in the header", source, kLengthBytes + zero));
  }
  SafetensorsHeader header;
  header.data_begin = kLengthBytes + static_cast<int64_t>(length);
  HeaderHandler handler(header, source);
  nlohmann::json::sax_parse(text.begin(), text.end(), &handler);
  for (const TensorInfo& tensor : header.tensors) check_size(tensor, source);
  check_tiling(header, file_bytes, source);
  return header;
}

}  // namespace orthant
