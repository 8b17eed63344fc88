// Samples of running text: the chosen documents are concatenated, and the stream of tokens is cut at equal lengths.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "data/indexed_dataset.h"
#include "data/sample_source.h"

namespace orthant {

/// The label of a token: the next token of the stream, or the token itself, for a model that predicts masked tokens.
enum class TextLabel { kNextToken, kSameToken };

/// Cuts the token stream of the documents at a stride of seq_len. The last sample may be shorter.
///
/// Example: with next tokens as labels, 10 tokens and seq_len 4 give the samples [0,4), [4,8) and [8,9), with labels
/// [1,5), [5,9) and [9,10).
class TextSamples : public SampleSource {
 public:
  /// Throws ConfigError if the documents have no token with a label. `key` is the key that names them, in messages.
  TextSamples(IndexedDataset dataset, std::vector<int64_t> documents, int64_t seq_len, TextLabel label,
              const std::string& key);

  int64_t num_samples() const override { return num_samples_; }
  int64_t num_tokens() const override { return starts_.back(); }
  int64_t length(int64_t sample) const override;
  int64_t num_labels(int64_t sample) const override { return length(sample); }
  std::vector<int64_t> read(int64_t sample, std::span<int64_t> tokens, std::span<int64_t> labels) const override;

 private:
  void read_stream(int64_t position, std::span<int32_t> out) const;
  std::vector<int64_t> document_starts(int64_t position, int64_t count) const;

  IndexedDataset dataset_;
  std::vector<int64_t> documents_;
  std::vector<int64_t> starts_;  // token stream position of each document; the last entry is the total
  int64_t ahead_;                // distance from a token to its label
  int64_t seq_len_;
  int64_t num_samples_;
};

}  // namespace orthant
