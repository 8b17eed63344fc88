// Barriers: what an Action waits for beside its stage's neighbors where the vocabulary layers are cut over all ranks.
// They are no Actions: each is a collective that runs beside the rows, from what feeds it to what reads it.
//
//   F of the last stage   -> S                 broadcast of the output layer's input
//   S of all ranks        -> Z, T or TW        statistics of the softmax; with TW also the sum of the
//                                              input's gradients, for which B of the last stage waits
//   Z of all ranks        -> T                 the sums of the exponentials
//   T of all ranks        -> B of the last     the sum of the input's gradients
//   E of all ranks        -> F of the first    the sum of the embeddings
//   B of the first stage  -> EB                broadcast of their gradient
//
// (B stands for B or I.) Each line has a communicator of its own, on which all ranks issue microbatches in increasing
// order. docs/decisions/0013.
#pragma once

#include <array>
#include <optional>
#include <vector>

#include "schedule/schedule.h"

namespace orthant {

/// The vocabulary Actions that each rank has for each microbatch.
struct VocabularyKinds {
  std::vector<ActionKind> output;  // in their order: S Z T, S T or S TW; empty for none
  bool input = false;              // E and EB
};
VocabularyKinds vocabulary_kinds(const Schedule& schedule);

/// The first stage of each rank, which its vocabulary Actions name; -1 for a rank without stages.
std::vector<int> first_stages(const Schedule& schedule);

/// Which barriers are open while rows are carried out. Of each Action there is one at most, on its stage's rank.
class Barriers {
 public:
  explicit Barriers(const Schedule& schedule);

  /// The rank of the Action has come to it. True if others can go on because of that: see met().
  bool come(const Action& action);
  /// The Action is done. True if that opens a barrier.
  bool done(const Action& action, double end_s = 0);

  /// From when on its barrier lets the Action begin, if it takes barrier_s between ranks: 0 where it waits at none,
  /// nothing where that is not known yet.
  std::optional<double> open_s(const Action& action, double barrier_s = 0) const {
    return any_ ? opens_s(action, barrier_s) : 0;
  }
  /// Whether the barrier is open under the strictest semantics: a broadcast ends once all that read it have come to it.
  bool met(const Action& action) const;
  /// Of an Action that has not met(): the first that is not done, or not come to.
  Action needed(const Action& action) const;

 private:
  /// One kind of Action as it is done on ranks, or come to.
  struct Gate {
    std::vector<char> by_rank;  // and microbatch
    std::vector<int> missing;   // by microbatch
    std::vector<double> latest_s;
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
  bool any_;  // the schedule has barriers
  int ranks_, last_stage_;
  std::array<Gate, kActionKinds> gates_;  // done, by the kind that feeds a barrier; I counts as B
  std::array<Gate, 2> come_;              // come to S, and to EB, which read broadcasts
};

}  // namespace orthant
