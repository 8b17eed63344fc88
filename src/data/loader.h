// From documents of tokens to samples of a fixed length, in an order that depends on the seed and the global number of
// a sample only: the whole state of a loader is that number, and any number of ranks continues the same order.
#pragma once

#include "base/labels.h"

#include <cstdint>
#include <optional>
#include <vector>

#include "data/indexed_dataset.h"
#include "data/masking.h"

namespace orthant {

/// Some samples, row-major [sequences, seq_len].
struct Batch {
  int64_t sequences = 0;
  int64_t seq_len = 0;
  std::vector<int64_t> tokens;
  std::vector<int64_t> labels;      ///< the next token, or what a masked one was; or kIgnoredLabel
  std::vector<int64_t> sample_ids;  ///< [sequences]: number of the sample within the whole run
  std::vector<std::vector<int64_t>>
      document_starts;  ///< [sequences]: where documents begin in each, the first one at 0
  /// [sequences]: tokens of each, which attention to both sides must not look past; empty where all are seq_len and
  /// where attention is causal.
  std::vector<int64_t> lengths;
};

/// kShuffled repeats for ever, each epoch in its own order; kSequential goes through the documents once.
enum class SampleOrder { kShuffled, kSequential };

/// The tokens of the chosen documents, one after another, cut into samples at a stride of seq_len: of seq_len + 1
/// tokens where the next one is the label, of seq_len where masked ones are. The last sample may be short: its missing
/// positions hold token 0 and kIgnoredLabel.
class Loader {
 public:
  /// Throws ConfigError if a shuffled loader has less than one sample (or a sequential one no label).
  Loader(IndexedDataset dataset, std::vector<int64_t> documents, int64_t seq_len, uint64_t seed, SampleOrder order,
         std::optional<Masking> masking = {});

  /// Samples in one epoch.
  int64_t num_samples() const { return num_samples_; }
  int64_t num_tokens() const { return starts_.back(); }
  /// Samples first .. first + count - 1 of the run. Sample g is number g % num_samples() of epoch g / num_samples().
  /// A sequential loader gives rows without any label past its end. Throws DataError on a damaged token.
  Batch batch(int64_t first, int64_t count) const;
  /// Labels in that batch which carry loss, without reading any token.
  int64_t valid_labels(int64_t first, int64_t count) const;
  /// Tokens in that batch; as many as labels where the next token is the label.
  int64_t present_tokens(int64_t first, int64_t count) const;
  /// Which sample of the token stream is sample g of the run; -1 past the end of a sequential loader.
  int64_t sample_index(int64_t g) const;

 private:
  int64_t sample_tokens(int64_t index) const;
  void read_stream(int64_t position, int64_t count, int64_t* out) const;
  std::vector<int64_t> document_starts(int64_t position, int64_t count) const;

  IndexedDataset dataset_;
  std::vector<int64_t> documents_;
  std::vector<int64_t> starts_;  // token stream position of each document; the last entry is the number of tokens
  std::optional<Masking> masking_;
  int64_t ahead_;  // a label is so many tokens ahead: 1, or 0 where tokens are masked
  int64_t seq_len_;
  int64_t num_samples_;
  uint64_t seed_;
  SampleOrder order_;
};

}  // namespace orthant
