// Puts the samples of one or several sources into an order that depends only on the seed and the global sample number.
// That number is the complete state of a loader, so any number of ranks can resume the same order.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/labels.h"
#include "data/blend.h"
#include "data/masking.h"
#include "data/sample_source.h"

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

/// kShuffled repeats each source without end, with a new order in each epoch; kSequential reads one source once.
enum class SampleOrder { kShuffled, kSequential };

/// The samples of a run in order: a Blend of the sources, each shuffled on its own. Samples shorter than seq_len are
/// padded with token 0 and kIgnoredLabel.
class Loader {
 public:
  using Sources = std::vector<std::shared_ptr<const SampleSource>>;

  /// `weights`: one for each source. With `masking`, the labels of each token must be the token itself. LogicError if
  /// the numbers differ, or if kSequential is given several sources.
  Loader(Sources sources, const std::vector<double>& weights, int64_t seq_len, uint64_t seed, SampleOrder order,
         std::optional<Masking> masking = {});

  /// Number of samples of all sources, each taken once.
  int64_t num_samples() const { return num_samples_; }
  int64_t num_tokens() const;
  int64_t seq_len() const { return seq_len_; }
  /// The samples [first, first + count) of the run. Past the end of a sequential loader, rows have no labels. Throws
  /// DataError for an invalid token.
  Batch batch(int64_t first, int64_t count) const;
  /// Number of labels in batch(first, count) that carry loss, without reading tokens.
  int64_t valid_labels(int64_t first, int64_t count) const;
  /// Number of tokens in batch(first, count).
  int64_t present_tokens(int64_t first, int64_t count) const;
  /// The source of sample g of the run, and its index there; nullopt past the end of a sequential loader.
  std::optional<BlendedSample> find(int64_t g) const;

 private:
  Sources sources_;
  Blend blend_;
  std::optional<Masking> masking_;
  int64_t seq_len_;
  int64_t num_samples_ = 0;
  uint64_t seed_;
  SampleOrder order_;
};

}  // namespace orthant
