// Samples of conversations, of which only the answers carry loss.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "data/indexed_dataset.h"
#include "data/sample_source.h"

namespace orthant {

/// Whether a sample may hold several conversations. Attention must then not cross documents.
enum class ConversationsPerSample { kOne, kSeveral };

/// Each sample holds complete conversations; one with more than seq_len tokens is cut there. Several are packed by
/// best-fit decreasing: from long to short, each goes to the sample with the least room in which it fits. The label of
/// a token is the next token of the same conversation if that one carries loss, else kIgnoredLabel. A conversation
/// without a label in its first seq_len tokens is left out.
class ChatSamples : public SampleSource {
 public:
  /// `loss_mask`: for each token of `tokens`, 1 if it carries loss, else 0. Throws ConfigError if all conversations are
  /// left out; `key` is the key that names them.
  ChatSamples(IndexedDataset tokens, IndexedDataset loss_mask, std::span<const int64_t> documents, int64_t seq_len,
              ConversationsPerSample per_sample, const std::string& key);

  int64_t num_samples() const override { return static_cast<int64_t>(samples_.size()); }
  int64_t num_tokens() const override { return num_tokens_; }
  int64_t length(int64_t sample) const override { return samples_[static_cast<size_t>(sample)].length; }
  int64_t num_labels(int64_t sample) const override { return samples_[static_cast<size_t>(sample)].labels; }
  std::vector<int64_t> read(int64_t sample, std::span<int64_t> tokens, std::span<int64_t> labels) const override;

 private:
  struct Sample {
    std::vector<int64_t> documents;
    int64_t length = 0, labels = 0;
  };

  int64_t kept_tokens(int64_t document) const;
  std::vector<int32_t> flags_of(int64_t document) const;  // of the kept tokens

  IndexedDataset tokens_, loss_mask_;
  int64_t seq_len_;
  int64_t num_tokens_ = 0;
  std::vector<Sample> samples_;
};

}  // namespace orthant
