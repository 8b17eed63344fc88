// Tokens on disk in Megatron's indexed format: PREFIX.bin holds bare token arrays, PREFIX.idx says where each document
// lies. Files written by Megatron's preprocess_data.py are read as they are, and ours are read by Megatron.
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace orthant {

/// Width of a stored token; the values are the format's own codes.
enum class TokenType : uint8_t { kU8 = 1, kI8 = 2, kI16 = 3, kI32 = 4, kI64 = 5, kU16 = 8 };

/// Read-only view of one dataset, memory-mapped; copies share the mapping, reads may run in many threads.
class IndexedDataset {
 public:
  /// Maps PREFIX.idx and PREFIX.bin and checks everything that the index claims before returning.
  /// vocab_size > 0: read() refuses tokens beyond it. Throws DataError with file and offset; ConfigError when a file
  /// is missing.
  static IndexedDataset open(const std::string& prefix, int64_t vocab_size = 0);

  int64_t num_documents() const;
  int64_t num_tokens() const;
  /// Tokens in document i; 0 <= i < num_documents(), otherwise LogicError.
  int64_t document_length(int64_t document) const;
  /// Copies out.size() tokens of the document, from offset on. The range must lie inside the document (LogicError).
  /// Throws DataError(file, offset, document, position) on a token that is negative, or >= vocab_size.
  void read(int64_t document, int64_t offset, std::span<int32_t> out) const;
  /// Reads every token once, so that a bad one is found before a run starts.
  void check_all_tokens() const;
  /// Hash of the whole .idx and of the size of .bin: names the dataset in checkpoints.
  uint64_t fingerprint() const;
  const std::string& prefix() const;

 private:
  struct Files;
  std::shared_ptr<const Files> files_;
};

/// Writes PREFIX.bin and PREFIX.idx: both go to temporary files first, and take their names in finish(), the .idx last.
/// A dataset that was not finished leaves nothing behind. Tokens are u8 if vocab_size <= 256, u16 if it is below 65500
/// (Megatron's own limit), otherwise i32.
class IndexedDatasetWriter {
 public:
  /// Makes the parent folder if there is none. Throws DataError with the file and the system's reason.
  IndexedDatasetWriter(const std::string& prefix, int64_t vocab_size);
  ~IndexedDatasetWriter();
  IndexedDatasetWriter(const IndexedDatasetWriter&) = delete;
  IndexedDatasetWriter& operator=(const IndexedDatasetWriter&) = delete;

  /// One document of any length (2^31 - 1 at most). Every token must be in [0, vocab_size) (LogicError).
  void add_document(std::span<const int32_t> tokens);
  /// Writes the index, syncs both files to disk, renames them. Throws DataError, e.g. when the disk is full.
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
