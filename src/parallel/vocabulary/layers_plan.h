// The vocabulary layers of one rank as values: the rows it holds, and the messages it sends for them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/output_loss.h"
#include "mesh/collective.h"
#include "parallel/vocabulary/plan.h"

namespace orthant {

/// One rank's rows of both tables. Rows from `vocabulary` on are padding: they are not part of the softmax, and their
/// gradient is 0. A rank may have no rows.
struct VocabularySlice {
  Range rows;
  int64_t vocabulary = 0;

  /// The rows that are not padding; they come first.
  Range real() const;
};

/// Sizes of one microbatch, and the root of its messages in the group.
struct VocabularyShape {
  int64_t tokens = 0;
  int64_t stream = 0;  // elements of x on this rank: N C, or less if a tensor mesh shards the stream
  int element_bytes = 4;  // of activations
  int ranks = 1, root = 0;  // root: position of the rank with the last stage (output layer) or the first (input layer)
  bool over_nccl = false;

  int statistic_bytes() const { return std::max(element_bytes, 4); }  // of sums over activations
};

/// Messages of the output layer for one microbatch over the pipeline axis; none in a group of one rank. Without
/// gradient: the loss only.
std::vector<Messages> output_traffic(const VocabularyAlgorithm& algorithm, const OutputLoss& loss,
                                     const VocabularyShape& shape, int position, bool with_gradient = true);
/// Messages of the input layer for one microbatch.
std::vector<Messages> input_traffic(const VocabularyShape& shape, int position);

}  // namespace orthant
