// Cuts documents of tokens into samples of a fixed length, in an order that depends only on the seed and the global
// sample number. That number is the complete state of a loader, so any number of ranks can resume the same order.
#pragma once

#include "base/labels.h"

#include <cstdint>
#include <optional>
#include <vector>

#include "data/indexed_dataset.h"
#include "data/masking.h"

namespace orthant {

/// Consecutive samples, row-major [sequences, seq_len].
struct Batch {
  int64_t sequences = 0;
  int64_t seq_len = 0;
  std::vector<int64_t> tokens;
  std::vector<int64_t> labels;      ///< the next token, or the original of a masked one; else kIgnoredLabel
  std::vector<int64_t> sample_ids;  ///< [sequences]: global number of the sample in the run
  std::vector<std::vector<int64_t>>
      document_starts;  ///< [sequences]: start positions of the documents in each, the first one 0
  /// [sequences]: number of tokens of each, beyond which bidirectional attention must not look. Empty if all have
  /// seq_len tokens, and for causal models.
  std::vector<int64_t> lengths;
};

/// kShuffled repeats without end, with a new order in each epoch; kSequential reads the documents once.
enum class SampleOrder { kShuffled, kSequential };

/// Concatenates the chosen documents and cuts the token stream into samples at a stride of seq_len. A sample reads
/// seq_len + 1 tokens if the labels are next tokens, and seq_len if tokens are masked. The last sample may be short:
/// its missing positions hold token 0 and kIgnoredLabel.
///
/// Example: 10 tokens with seq_len 4 give the samples [0,4), [4,8) and [8,9), with labels [1,5), [5,9) and [9,10).
class Loader {
 public:
  /// Throws ConfigError if a shuffled loader has less than one sample, or a sequential one no label.
  Loader(IndexedDataset dataset, std::vector<int64_t> documents, int64_t seq_len, uint64_t seed, SampleOrder order,
         std::optional<Masking> masking = {});

  /// Number of samples in one epoch.
  int64_t num_samples() const { return num_samples_; }
  int64_t num_tokens() const { return starts_.back(); }
  /// The samples [first, first + count) of the run. Sample g is number g % num_samples() of epoch g / num_samples().
  /// Past the end of a sequential loader, rows have no labels. Throws DataError for an invalid token.
  Batch batch(int64_t first, int64_t count) const;
  /// Number of labels in batch(first, count) that carry loss, without reading tokens.
  int64_t valid_labels(int64_t first, int64_t count) const;
  /// Number of tokens in batch(first, count); equals valid_labels() if the labels are next tokens.
  int64_t present_tokens(int64_t first, int64_t count) const;
  /// Index in the token stream of sample g of the run; -1 past the end of a sequential loader.
  int64_t sample_index(int64_t g) const;

 private:
  int64_t sample_tokens(int64_t index) const;
  void read_stream(int64_t position, int64_t count, int64_t* out) const;
  std::vector<int64_t> document_starts(int64_t position, int64_t count) const;

  IndexedDataset dataset_;
  std::vector<int64_t> documents_;
  std::vector<int64_t> starts_;  // token stream position of each document; the last entry is the total
  std::optional<Masking> masking_;
  int64_t ahead_;  // distance from a token to its label: 1, or 0 if tokens are masked
  int64_t seq_len_;
  int64_t num_samples_;
  uint64_t seed_;
  SampleOrder order_;
};

}  // namespace orthant
