// Tokens on disk in Megatron's indexed format: PREFIX.bin holds the token arrays, PREFIX.idx the position of each
// document. Files of Megatron's preprocess_data.py can be read, and Megatron can read files written here.
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace orthant {

/// Type of a stored token; the values are the codes of the format.
enum class TokenType : uint8_t { kU8 = 1, kI8 = 2, kI16 = 3, kI32 = 4, kI64 = 5, kU16 = 8 };

/// A read-only, memory-mapped dataset. Copies share the mapping, and several threads may read.
class IndexedDataset {
 public:
  /// Maps PREFIX.idx and PREFIX.bin and validates the complete index. If vocab_size > 0, read() rejects tokens of at
  /// least vocab_size. Throws DataError with file and offset, and ConfigError if a file is missing.
  static IndexedDataset open(const std::string& prefix, int64_t vocab_size = 0);

  int64_t num_documents() const;
  int64_t num_tokens() const;
  /// Number of tokens of the document. LogicError unless 0 <= document < num_documents().
  int64_t document_length(int64_t document) const;
  /// Copies out.size() tokens of the document, starting at offset. The range must lie inside the document (LogicError).
  /// Throws DataError with file, offset, document and position for a token that is negative or outside the vocabulary.
  void read(int64_t document, int64_t offset, std::span<int32_t> out) const;
  /// Hash of the .idx file and of the size of .bin; identifies the dataset in checkpoints.
  uint64_t fingerprint() const;
  const std::string& prefix() const;

 private:
  struct Files;
  std::shared_ptr<const Files> files_;
};

/// Writes PREFIX.bin and PREFIX.idx through temporary files, which finish() renames, the .idx last. An unfinished
/// dataset leaves no files. Tokens are u8 if vocab_size <= 256, u16 if it is below 65500 (Megatron's limit), else i32.
class IndexedDatasetWriter {
 public:
  /// Creates the parent folder if needed. Throws DataError with the file and the system's reason.
  IndexedDatasetWriter(const std::string& prefix, int64_t vocab_size);
  ~IndexedDatasetWriter();
  IndexedDatasetWriter(const IndexedDatasetWriter&) = delete;
  IndexedDatasetWriter& operator=(const IndexedDatasetWriter&) = delete;

  /// Appends one document of at most 2^31 - 1 tokens. Every token must be in [0, vocab_size) (LogicError).
  void add_document(std::span<const int32_t> tokens);
  /// Writes the index, syncs both files to disk and renames them. Throws DataError, for example if the disk is full.
  void finish();
  int64_t num_documents() const { return static_cast<int64_t>(lengths_.size()); }
  int64_t num_tokens() const { return num_tokens_; }

 private:
  void write_index();

  std::string prefix_, bin_temporary_, idx_temporary_;
  int64_t vocab_size_;
  TokenType type_;
  std::FILE* bin_ = nullptr;
  std::vector<int32_t> lengths_;
  int64_t num_tokens_ = 0;
};

}  // namespace orthant
