#include "data/tokenize_text.h"

#include <algorithm>

namespace orthant {
namespace {

constexpr int64_t kLeastPieces = 24;  // pieces of a text with at least as many lines: enough to hold some out

/// Collects pieces, encodes them in batches of about 4 MiB and writes them in order.
class Batcher {
 public:
  Batcher(const Tokenizer& tokenizer, IndexedDatasetWriter& writer, const TextProgress& progress, int64_t total)
      : tokenizer_(tokenizer), writer_(writer), progress_(progress), total_(total) {}

  void add(std::string&& text, bool ends_document) {
    waiting_ += static_cast<int64_t>(text.size());
    texts_.push_back(std::move(text));
    ends_.push_back(ends_document);
    if (waiting_ >= kTextBatchBytes) flush();
  }

  void flush() {
    const std::vector<std::string_view> views(texts_.begin(), texts_.end());
    std::vector<std::vector<int32_t>> tokens = tokenizer_.encode_many(views);
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (begins_next_) tokens[i].insert(tokens[i].begin(), begin_tokens_.begin(), begin_tokens_.end());
      begins_next_ = ends_[i];
      if (ends_[i]) tokens[i].push_back(tokenizer_.end_of_text());
      writer_.add_document(tokens[i]);
    }
    done_ += waiting_;
    waiting_ = 0;
    texts_.clear();
    ends_.clear();
    if (progress_) progress_(std::min(done_, total_), total_);
  }

 private:
  const Tokenizer& tokenizer_;
  IndexedDatasetWriter& writer_;
  const TextProgress& progress_;
  int64_t total_, done_ = 0, waiting_ = 0;
  std::vector<std::string> texts_;
  std::vector<bool> ends_;   // whether a text ends a document
  bool begins_next_ = true;  // the next text begins one
  const std::vector<int32_t> begin_tokens_ = tokenizer_.begin_tokens();
};

/// The default sizes, or smaller ones for a text that would yield too few pieces.
PieceSize piece_size(int64_t total_bytes) {
  PieceSize size;
  size.longest_bytes = std::clamp<int64_t>(total_bytes / kLeastPieces, 1, size.longest_bytes);
  size.wanted_bytes = std::clamp<int64_t>(size.longest_bytes / 2, 1, size.wanted_bytes);
  return size;
}

}  // namespace

TokenizedText tokenize_text(std::span<const TextFile> files, const Tokenizer& tokenizer, IndexedDatasetWriter& writer,
                            const TextProgress& progress) {
  int64_t total = 0;
  for (const TextFile& file : files) total += file.bytes;
  const PieceSize size = piece_size(total);
  TokenizedText tokenized{.piece_bytes = size.wanted_bytes};
  if (progress) progress(0, total);
  Batcher batcher(tokenizer, writer, progress, total);
  for (const TextFile& file : files) {
    tokenized.files_with_separators += file.has_separators ? 1 : 0;
    const auto add = [&](std::string&& text, bool ends_document) {
      tokenized.documents += ends_document ? 1 : 0;
      ++tokenized.pieces;
      batcher.add(std::move(text), ends_document);
    };
    for_each_piece(file, add, size);
  }
  batcher.flush();
  if (progress) progress(total, total);  // blank documents and separators never counted as done
  return tokenized;
}

std::vector<TextFile> scan_texts(std::span<const std::string> paths, const TextFormat& format, FileReadings* readings) {
  std::vector<TextFile> files;
  for (const std::string& path : paths) {
    files.push_back(readings != nullptr ? readings->scan(path, format) : scan_text(path, format));
  }
  return files;
}

}  // namespace orthant
