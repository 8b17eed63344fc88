#include "data/indexed_dataset.h"

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "base/errors.h"
#include "base/hash.h"
#include "base/mapped_file.h"

namespace orthant {

namespace {

constexpr int64_t kHeaderBytes = 34;

/// One file of the pair (.bin or .idx), read by byte offset.
class Part {
 public:
  explicit Part(const std::string& path) : file_(find(path)) {}

  int64_t size() const { return static_cast<int64_t>(file_.bytes().size()); }
  const std::string& path() const { return file_.path(); }
  const char* data() const { return reinterpret_cast<const char*>(file_.bytes().data()); }
  /// The unaligned little-endian value at an offset; the caller has checked the bounds.
  template <typename T>
  T at(int64_t offset) const {
    T value;
    std::memcpy(&value, data() + offset, sizeof(T));
    return value;
  }
  template <typename... Args>
  [[noreturn]] void damaged(int64_t offset, fmt::format_string<Args...> text, Args&&... args) const {
    throw DataError(fmt::format("{}: offset {}: {}", path(), offset, fmt::format(text, std::forward<Args>(args)...)));
  }

 private:
  static const std::string& find(const std::string& path) {
    if (std::filesystem::exists(path)) return path;
    throw ConfigError(path + ": there is no such file; a dataset is the pair PREFIX.bin and PREFIX.idx");
  }

  MappedFile file_;
};

int64_t token_width(uint8_t code) {
  switch (static_cast<TokenType>(code)) {
    case TokenType::kU8:
    case TokenType::kI8:
      return 1;
    case TokenType::kI16:
    case TokenType::kU16:
      return 2;
    case TokenType::kI32:
      return 4;
    case TokenType::kI64:
      return 8;
  }
  return 0;
}

}  // namespace

struct IndexedDataset::Files {
  Files(const std::string& prefix_, int64_t vocab_size_)
      : prefix(prefix_), vocab_size(vocab_size_), idx(prefix_ + ".idx"), bin(prefix_ + ".bin") {}

  void check_header();
  void check_sequences();
  void check_documents() const;
  /// Byte offset in .bin at which a sequence starts, or at which the last one ends.
  int64_t sequence_start(int64_t sequence) const {
    return sequence == sequences ? bin.size() : idx.at<int64_t>(pointers_at() + 8 * sequence);
  }
  int64_t document_start(int64_t document) const {
    return sequence_start(idx.at<int64_t>(documents_at() + 8 * document));
  }
  int64_t pointers_at() const { return kHeaderBytes + 4 * sequences; }
  int64_t documents_at() const { return kHeaderBytes + 12 * sequences; }
  template <typename T>
  void read(int64_t document, int64_t offset, std::span<int32_t> out) const;

  std::string prefix;
  int64_t vocab_size;
  Part idx, bin;
  TokenType type = TokenType::kI32;
  int64_t width = 0, sequences = 0, documents = 0;
  uint64_t hash = 0;
};

void IndexedDataset::Files::check_header() {
  if (idx.size() < kHeaderBytes) idx.damaged(idx.size(), "the file ends within the header of {} bytes", kHeaderBytes);
  if (std::memcmp(idx.data(), "MMIDIDX\0\0", 9) != 0)
    idx.damaged(0, "expected the magic bytes MMIDIDX; not a Megatron index");
  if (const auto version = idx.at<uint64_t>(9); version != 1) idx.damaged(9, "version {}, expected 1", version);
  const auto code = idx.at<uint8_t>(17);
  width = token_width(code);
  if (width == 0) idx.damaged(17, "type code {}, expected an integer type: 1, 2, 3, 4, 5 or 8", code);
  type = static_cast<TokenType>(code);

  const auto s = idx.at<uint64_t>(18), d = idx.at<uint64_t>(26);
  const auto room = static_cast<uint64_t>(idx.size() - kHeaderBytes);
  if (s > room / 12) idx.damaged(18, "{} sequences do not fit the file of {} bytes", s, idx.size());
  if (d < 1 || d > (room - 12 * s) / 8)
    idx.damaged(26, "{} document boundaries do not fit the file of {} bytes", d, idx.size());
  const uint64_t rest = room - 12 * s - 8 * d;
  if (rest != 0 && rest != s)
    idx.damaged(idx.size() - static_cast<int64_t>(rest), "{} bytes follow the last document", rest);
  sequences = static_cast<int64_t>(s);
  documents = static_cast<int64_t>(d) - 1;
}

void IndexedDataset::Files::check_sequences() {
  int64_t expected = 0;
  for (int64_t i = 0; i < sequences; ++i) {
    const auto length = idx.at<int32_t>(kHeaderBytes + 4 * i);
    const auto pointer = idx.at<int64_t>(pointers_at() + 8 * i);
    if (length < 0) idx.damaged(kHeaderBytes + 4 * i, "sequence {} has length {}", i, length);
    if (pointer != expected)
      idx.damaged(pointers_at() + 8 * i, "sequence {} starts at byte {}, expected {}", i, pointer, expected);
    expected += length * width;
    if (expected > bin.size())
      throw DataError(
          fmt::format("{}: offset {}: the file ends, but in {} sequence {} is at bytes {} to {}; "
                      "the file is truncated or belongs to another index",
                      bin.path(), bin.size(), idx.path(), i, pointer, expected));
  }
  if (expected != bin.size())
    bin.damaged(expected, "{} bytes follow the last sequence of {}", bin.size() - expected, idx.path());
}

void IndexedDataset::Files::check_documents() const {
  int64_t last = 0;
  for (int64_t i = 0; i <= documents; ++i) {
    const int64_t at = documents_at() + 8 * i;
    const auto boundary = idx.at<int64_t>(at);
    if (i == 0 && boundary != 0) idx.damaged(at, "the first document starts at sequence {}, expected 0", boundary);
    if (boundary < last || boundary > sequences)
      idx.damaged(at, "document boundary {} is sequence {}, expected one from {} to {}", i, boundary, last, sequences);
    last = boundary;
  }
  if (last != sequences)
    idx.damaged(documents_at() + 8 * documents, "the last document ends at sequence {}, expected {}", last, sequences);
}

template <typename T>
void IndexedDataset::Files::read(int64_t document, int64_t offset, std::span<int32_t> out) const {
  const int64_t start = document_start(document) + offset * width;
  const int64_t limit = vocab_size > 0 ? vocab_size : int64_t{1} << 31;
  for (size_t i = 0; i < out.size(); ++i) {
    const int64_t at = start + static_cast<int64_t>(i) * width;
    const auto token = static_cast<int64_t>(bin.at<T>(at));
    if (token < 0 || token >= limit)
      bin.damaged(
          at, "document {}, position {}: token {} is outside the vocabulary of {}; was it made with another tokenizer?",
          document, offset + static_cast<int64_t>(i), token, limit);
    out[i] = static_cast<int32_t>(token);
  }
}

IndexedDataset IndexedDataset::open(const std::string& prefix, int64_t vocab_size) {
  ORTHANT_CHECK(vocab_size >= 0 && vocab_size <= int64_t{1} << 31, vocab_size);
  auto files = std::make_shared<Files>(prefix, vocab_size);
  files->check_header();
  files->check_sequences();
  files->check_documents();
  Hasher hasher;
  hasher.add({files->idx.data(), static_cast<size_t>(files->idx.size())});
  hasher.add_field(static_cast<uint64_t>(files->bin.size()));
  files->hash = hasher.digest();
  IndexedDataset dataset;
  dataset.files_ = std::move(files);
  return dataset;
}

int64_t IndexedDataset::num_documents() const { return files_ ? files_->documents : 0; }
int64_t IndexedDataset::num_tokens() const { return files_ ? files_->bin.size() / files_->width : 0; }
uint64_t IndexedDataset::fingerprint() const { return files_ ? files_->hash : 0; }

const std::string& IndexedDataset::prefix() const {
  static const std::string none;
  return files_ ? files_->prefix : none;
}

int64_t IndexedDataset::document_length(int64_t document) const {
  ORTHANT_CHECK(document >= 0 && document < num_documents(), document, num_documents());
  return (files_->document_start(document + 1) - files_->document_start(document)) / files_->width;
}

void IndexedDataset::read(int64_t document, int64_t offset, std::span<int32_t> out) const {
  const int64_t length = document_length(document);
  const auto count = static_cast<int64_t>(out.size());
  ORTHANT_CHECK(offset >= 0 && count <= length && offset <= length - count, document, offset, count, length);
  switch (files_->type) {
    case TokenType::kU8:
      return files_->read<uint8_t>(document, offset, out);
    case TokenType::kI8:
      return files_->read<int8_t>(document, offset, out);
    case TokenType::kI16:
      return files_->read<int16_t>(document, offset, out);
    case TokenType::kI32:
      return files_->read<int32_t>(document, offset, out);
    case TokenType::kI64:
      return files_->read<int64_t>(document, offset, out);
    case TokenType::kU16:
      return files_->read<uint16_t>(document, offset, out);
  }
}

}  // namespace orthant
