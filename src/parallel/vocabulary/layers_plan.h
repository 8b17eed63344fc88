// The vocabulary layers of one rank as values: which rows it has, what loss they make, what it sends for them.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/output_loss.h"
#include "mesh/mesh.h"
#include "parallel/vocabulary/plan.h"

namespace orthant {

/// One rank's rows of both tables. Those from `vocabulary` on are padding: they are nowhere in the softmax, and their
/// gradient is 0. A rank may have no rows at all.
struct VocabularySlice {
  Range rows;
  int64_t vocabulary = 0;

  /// Those that are no padding; they come first.
  Range real() const;
};

/// One microbatch, and where in the group its messages begin and end.
struct VocabularyShape {
  int64_t tokens = 0;
  int64_t stream = 0;  // elements of x that the rank has: N C, or less of it where a tensor mesh cuts the stream
  int element_bytes = 4, statistic_bytes = 4;  // of activations; of sums over them
  int ranks = 1, root = 0;                     // position of the rank that has the last stage, or the first
};

/// How often a collective is called, and the bytes that the rank sends for it.
struct VocabularyMessages {
  std::string_view collective;
  int64_t calls = 0, bytes = 0;
};

/// Of the output layer for one microbatch; nothing among one rank. Without gradient: of the loss alone.
std::vector<VocabularyMessages> output_traffic(const VocabularyAlgorithm& algorithm, const OutputLoss& loss,
                                               const VocabularyShape& shape, int position, bool with_gradient = true);
/// Of the input layer.
std::vector<VocabularyMessages> input_traffic(const VocabularyShape& shape, int position);

}  // namespace orthant
