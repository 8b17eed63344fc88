// The samples of one dataset. A Loader puts the samples of one or several sources into the order of a run.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace orthant {

/// A fixed list of samples of at most seq_len tokens. Several threads may read.
class SampleSource {
 public:
  virtual ~SampleSource() = default;

  virtual int64_t num_samples() const = 0;
  /// Number of tokens in all samples together.
  virtual int64_t num_tokens() const = 0;
  /// Number of tokens in the sample, from 1 to seq_len.
  virtual int64_t length(int64_t sample) const = 0;
  /// Number of labels of the sample that carry loss, without reading tokens.
  virtual int64_t num_labels(int64_t sample) const = 0;
  /// Writes the tokens and labels of the sample; both spans have its length. Labels without loss are kIgnoredLabel.
  /// Returns the start positions of the documents in the sample, the first one 0. Throws DataError for an invalid
  /// token.
  virtual std::vector<int64_t> read(int64_t sample, std::span<int64_t> tokens, std::span<int64_t> labels) const = 0;
};

}  // namespace orthant
