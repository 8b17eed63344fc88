// Vocabulary parallelism, the plan: the embedding and the output layer cut by rows of the vocabulary over all pipeline
// ranks, and each rank's share of them put into the order that a pipeline's schedule has without it. Yeung, Qi, Lin and
// Wan 2024, "Balancing Pipeline Parallelism with Vocabulary Parallelism", arXiv 2411.05288.
//
// The shares of the output layer meet at k barriers between a microbatch's forward and backward of the last stage
// (schedule/barriers.h). Every rank runs k microbatches' forwards more before its first backward, so that nobody waits
// at a barrier, and holds as many more: p + k in place of 1F1B's p, whatever p is. In return each rank has 1/p of both
// layers' work and weights, where else the last rank has all of one and the first all of the other.
#pragma once

#include <span>
#include <string_view>

#include "schedule/schedule.h"
#include "schedule/simulate.h"

namespace orthant {

/// An order of the output layer, under the name that it has in a run file.
struct VocabularyAlgorithm {
  std::string_view name;
  std::span<const ActionKind> passes;  // on every rank
  int barriers;                        // k

  /// Whether S makes the gradient of the layer's input too, and TW is left with the weight's.
  bool early() const { return passes.back() == ActionKind::TW; }
  /// How often ranks tell each other numbers of tokens.
  int rounds() const { return passes.size() == 3 ? 2 : 1; }

  /// Forwards of one stage by which backwards have to be later, for PipelineShape::later: then no barrier as short
  /// as a rank's forward of a microbatch holds up anybody. Of interleaved_1f1b with algorithm_2 one is enough for
  /// barriers as short as that of one stage. With none, ranks wait at the barriers of every microbatch.
  int later(int stages_per_rank) const { return barriers * stages_per_rank; }
};

std::span<const VocabularyAlgorithm> vocabulary_algorithms();
/// LogicError for a name that is none.
const VocabularyAlgorithm& vocabulary_algorithm(std::string_view name);

/// A Pass over any schedule of computations: every rank's S, T and the like, and E and EB where `input`, at the same
/// time on all ranks as near as can be. They stand evenly between the last stage's forward and backward of their
/// microbatch, and TW right before the next S; E a microbatch's work before the first stage's forward, EB as much after
/// its backward. Times are those that `schedule` has without them. What waits for another has a later time, so all rows
/// are parts of one order and the step ends. LogicError where the last stage's forwards, or with `input`
/// the first stage's backwards, do not go up in microbatches.
Schedule add_vocabulary(const Schedule& schedule, const VocabularyAlgorithm& algorithm, const Durations& durations,
                        bool input = true);

/// E and EB alone, for a schedule that has the output layer's shares already, in one order on all ranks: then ranks
/// meet at S, whenever each comes to it. An E stands where it would by its time, and before the S that the first rank
/// comes to behind the F that it is for; an EB one S further on than that behind its B.
Schedule add_input_layer(const Schedule& schedule, const Durations& durations);

}  // namespace orthant
