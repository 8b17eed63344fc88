// Vocabulary parallelism, pure half. All pipeline ranks shard the embedding and the output layer by rows of the
// vocabulary, and each rank's passes over its rows are inserted into its row of the pipeline schedule. Yeung, Qi, Lin
// and Wan 2024, "Balancing Pipeline Parallelism with Vocabulary Parallelism", arXiv 2411.05288.
//
// The output layer synchronizes all ranks at k barriers between a microbatch's forward and backward of the last stage
// (schedule/barriers.h). Every rank runs the forwards of k more microbatches before its first backward, so that no rank
// waits at a barrier. It keeps their activations too: p + k microbatches for 1F1B's p, for any p. In return each rank
// has 1/p of the work and weights of both layers. Without it, the last rank has one layer and the first the other.
//
// Example: 10 rows over 4 ranks, one token x with label 7, algorithm 1. w_v is row v of the weight. The exponentials of
// the logits x w_v are 1 2 1 4 2 2 1 3 2 2, so the softmax divides by 20. `top` is the maximum of a rank's logits.
//
//   rank  rows  S: exp(z - top)   statistics that S sends:     T: factor f       dx that T makes
//                                 top    sum   label's logit   exp(top - ln 4)/5
//   0     0..2  1/2  1   1/2      ln 2   2     0               0.10              f (1/2 w_0 + w_1 + 1/2 w_2)
//   1     3..5  1    1/2 1/2      ln 4   2     0               0.20              f (w_3 + 1/2 w_4 + 1/2 w_5)
//   2     6, 7  1/3  1            ln 3   4/3   ln 3            0.15              f (1/3 w_6 + w_7) - w_7
//   3     8, 9  1    1            ln 2   2     0               0.10              f (w_8 + w_9)
//
// After the all-gather of statistics every rank has the maximum ln 4 and the sum 2/2 + 2 + 4/3 3/4 + 2/2 = 5. The loss
// is ln 5 + ln 4 - ln 3 = ln(20/3). dx is summed on the last stage's rank. T also adds the gradients of the rank's
// rows: f exp(z - top) x, less x for row 7. Algorithm 2 computes the sums in brackets in S already, scales them by f
// when the statistics arrive, and leaves only the rows' gradients to TW. The naive order gathers maxima in S and sums
// in Z.
#pragma once

#include <span>
#include <string_view>

#include "schedule/schedule.h"
#include "schedule/simulate.h"

namespace orthant {

/// An order of the output layer's passes, under its name in a run file.
struct VocabularyAlgorithm {
  std::string_view name;
  std::span<const ActionKind> passes;  // on every rank
  int barriers;                        // k

  /// Whether S also makes the gradient of the layer's input, so that TW makes only the weight's.
  bool early() const { return passes.back() == ActionKind::TW; }
  /// All-gathers of statistics for a microbatch.
  int rounds() const { return passes.size() == 3 ? 2 : 1; }

  /// Extra warm-up forwards of one stage before the first backward, for PipelineShape::extra_warmup_forwards. With
  /// them, a barrier that takes at most as long as a rank's forward of a microbatch delays no rank. For
  /// interleaved_1f1b with algorithm_2 one extra forward is enough if barriers take at most one stage's forward. With
  /// none, ranks wait at the barriers of every microbatch.
  int extra_warmup_forwards(int stages_per_rank) const { return barriers * stages_per_rank; }
};

std::span<const VocabularyAlgorithm> vocabulary_algorithms();
/// LogicError for an unknown name.
const VocabularyAlgorithm& vocabulary_algorithm(std::string_view name);

/// A Pass over a schedule without vocabulary Actions. Adds the algorithm's passes on every rank and, if `input`, E and
/// EB. All ranks run each of them at nearly the same time. Passes up to the one that the last stage's backward waits
/// for are spread evenly between the last stage's forward and backward. TW stands right before the next S, E one
/// microbatch's work before the first stage's forward, EB one after its backward. Times are those of `schedule`
/// alone. An Action is later than all that it waits for, so one global order exists and the step terminates. LogicError
/// unless the last stage's forwards and, if `input`, the first stage's backwards are in increasing microbatch order.
Schedule add_vocabulary(const Schedule& schedule, const VocabularyAlgorithm& algorithm, const Durations& durations,
                        bool input = true);

/// Adds only E and EB to a schedule that has the output layer's passes, in one order on all ranks. Ranks may reach the
/// same S at different times, so places are counted in S. An E stands at its time, but at the latest before the first S
/// that follows its F in the row of the first stage. An EB stands before the second S that follows its B in that row.
Schedule add_input_layer(const Schedule& schedule, const Durations& durations);

}  // namespace orthant
