// The operations between ranks that a rank starts in a step, in order, as the plan implies them, and a check that the
// lists of all ranks match: each send has its receive, the members of a group start the same collectives in the same
// order, and no ranks wait for each other in collectives of different groups.
//
// The lists contain messages between stages, gathers and reductions of buckets, collectives of a vocabulary that is
// sharded over the pipeline, and what follows the row: copies of tied gradients, step statistics, gathers of weights.
// The collectives within a block follow from the operations of the model, which all members of their groups carry out
// in the same order; their kinds and numbers are checked for each microbatch.
//
// The cost does not grow with the ranks, but with the classes of ranks that have equal values (rank_values.h), except
// for a look-up per rank and group of axes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "mesh/rank_classes.h"
#include "plan/rank_values.h"

namespace orthant {

/// One operation between ranks.
struct PlannedOperation {
  Action action;      // the Action that needs it; STEP for operations after the row
  std::string kind;   // as Comm counts it: "send", "all_reduce"
  std::string group;  // as Comm names it: axes joined by "+", and "#" with a channel
  int64_t bytes = 0;  // of the tensor, as Comm reports it; -1 if it differs between members
  int peer = -1;      // send, recv and exchange: pipeline rank of the other side
  int action_index = 0;  // of `action` in the row, before which a recv is posted; its length for operations after it

  bool operator==(const PlannedOperation&) const = default;
};

/// The operations of a rank with these values in a step, in the order in which it starts them. Operations of different
/// groups may start in another order, because reductions start as soon as backward has filled their buckets.
std::vector<PlannedOperation> planned_operations(const ParameterPlacement& plan, const RankValues& rank);

/// The lists of all ranks.
struct OperationLists {
  RankClasses classes;
  std::vector<std::vector<PlannedOperation>> lists;  // by class
};

/// "all_reduce of 4.0 KiB in 1B2"
std::string describe_operation(const PlannedOperation& operation);

/// Returns the problems of the lists, each with the rank, the Action, the group and the law, at most ten; empty if they
/// match. Laws: every send has one receive with equal bytes, in the same order between any two ranks; the members of a
/// group start the same collectives, with equal bytes, in the same order; and that of order_problems().
std::vector<std::string> operation_problems(const Mesh& mesh, const OperationLists& all);
/// Simulates the lists with the order of NCCL, for runs on CPUs too: a rank completes a collective before its next
/// operation. It completes a receive at its action_index, once the message is sent. It does not wait for a send,
/// because the receiver posts the receive in time (send_completions.h). Returns the cycles of ranks that wait for each
/// other, at most one for each channel (Comm::channel()), because channels need no common order. Throws LogicError if
/// members of a group do not start the same operations.
std::vector<std::string> order_problems(const Mesh& mesh, const OperationLists& all);
/// The same for the collectives within blocks, of ranks with these values by class.
std::vector<std::string> block_problems(const Mesh& mesh, const RankClasses& classes,
                                        const std::vector<RankValues>& ranks);

/// Throws LogicError with the problems of a plan, if there are any: those of its lists, those within blocks, and
/// pipeline ranks that wait for each other forever (progress.h).
void check_operations(const ParameterPlacement& plan);

}  // namespace orthant
