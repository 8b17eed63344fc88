// Barriers: dependencies through collectives of the vocabulary layers, if these are sharded over all pipeline ranks. A
// barrier is not an Action. It is a collective that runs in the background, from the Actions that feed it to those that
// read its result:
//
//   F of the last stage   -> S                     broadcast of the output layer's input
//   S of all ranks        -> Z, T or TW            softmax statistics; with TW also the sum of the input gradients,
//                                                  for which B of the last stage waits
//   Z of all ranks        -> T                     sums of the exponentials
//   T of all ranks        -> B of the last stage   sum of the input gradients
//   E of all ranks        -> F of the first stage  sum of the embeddings
//   B of the first stage  -> EB                    broadcast of the gradient of the embeddings
//
// Here B means B or I. Each line has its own communicator, on which all ranks issue microbatches in increasing order.
// See docs/decisions/0013.
#pragma once

#include <array>
#include <optional>
#include <vector>

#include "schedule/schedule.h"

namespace orthant {

/// Kinds of vocabulary Actions that each rank runs for each microbatch.
struct VocabularyKinds {
  std::vector<ActionKind> output;  // in order: S Z T, S T or S TW; empty if the output layer is not sharded
  bool input = false;              // whether there are E and EB
};
/// The vocabulary kinds that occur in the schedule.
VocabularyKinds vocabulary_kinds(const Schedule& schedule);

/// First stage of each rank, which the rank's vocabulary Actions name; -1 for a rank without stages.
std::vector<int> first_stages(const Schedule& schedule);

/// Tracks which barriers are open while rows are carried out. Each Action must occur at most once, on the rank that
/// owns its stage.
class Barriers {
 public:
  explicit Barriers(const Schedule& schedule);

  /// Records that the rank has reached the Action but not begun it. Returns true if other ranks can continue because of
  /// that: see met().
  bool reach(const Action& action);
  /// Records that the Action ended at end_s. Returns true if that opens a barrier.
  bool done(const Action& action, double end_s = 0);

  /// Earliest time at which the Action's barrier lets it begin, if a collective between ranks takes barrier_s. The
  /// result is 0 for an Action without a barrier, and empty while the time is unknown.
  std::optional<double> open_s(const Action& action, double barrier_s = 0) const {
    return any_ ? opens_s(action, barrier_s) : 0;
  }
  /// Whether the Action's barrier is open under the strictest semantics: a broadcast ends only after all ranks that
  /// read it have reached the Action that reads it.
  bool met(const Action& action) const;
  /// For an Action whose barrier is not open: the first Action that is missing, either not done or not reached.
  Action needed(const Action& action) const;

 private:
  /// Arrivals of the ranks at one kind of Action.
  struct Gate {
    std::vector<char> by_rank;     // whether the rank has arrived, by microbatch and rank
    std::vector<int> missing;      // number of arrivals still missing, by microbatch
    std::vector<double> latest_s;  // time of the latest arrival, by microbatch
  };

  std::optional<double> opens_s(const Action& action, double barrier_s) const;
  std::optional<ActionKind> feeder(const Action& action) const;
  bool reads_broadcast(const Action& action) const;
  bool arrive(Gate& gate, const Action& action, double at_s);
  Gate& gate_of(ActionKind kind) { return gates_[static_cast<size_t>(kind)]; }
  const Gate& gate_of(ActionKind kind) const { return gates_[static_cast<size_t>(kind)]; }
  int owner(int stage) const { return stage_owner_[static_cast<size_t>(stage)]; }

  std::vector<int> stage_owner_, first_stages_;
  VocabularyKinds passes_;
  bool any_;  // whether the schedule has barriers
  int ranks_, last_stage_;
  std::array<Gate, kActionKinds> gates_;  // Actions done, by the kind that feeds a barrier; I counts as B
  std::array<Gate, 2> reached_;           // ranks that have reached S [0] and EB [1], the kinds that read broadcasts
};

}  // namespace orthant
