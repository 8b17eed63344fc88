// simulate() computes when each Action of a schedule starts and ends under given durations. The result gives makespan,
// bubble and peak live activations. The plan prints it, and draw.h draws it.
//
// The model of execution:
// - A rank computes in its row's order, one Action at a time. A computation waits for the results that it reads.
// - Communication is posted at its position in the row and runs in the background, on its own stream. A SEND begins
//   when it is posted and its stream is free, and takes link_time. A RECV ends when the message has arrived.
// - Without SEND and RECV in the schedule, a stage on another rank sees a result link_time after it is made.
// - The computations of a stage wait for its UNSHARD.
// - A REDUCE begins at its position in the row, or earlier, when its gradients are complete, and when the reductions
//   before it have ended. Nothing in the row waits for it, except STEP and FINALIZE.
// - A barrier of the vocabulary layers opens barrier() after the last rank has fed it.
// - STEP and FINALIZE begin link_time after the rank that they wait for has begun its own: the k-th of a row waits for
//   the k-th of the other row.
#pragma once

#include <array>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "schedule/action.h"
#include "schedule/schedule.h"

namespace orthant {

/// Duration of the reduction of one gradient bucket.
struct BucketReduction {
  double duration = 0;
  /// The fraction of the stage's last backward after which the bucket's gradients are complete, so that the reduction
  /// can begin before its Action in the row. Above 1: it begins at its Action.
  double complete_after = 2;
};

/// Durations of Actions, in seconds or any other common unit.
struct Durations {
  std::array<double, kActionKinds> times{};  // by kind, except SEND and RECV, which take link()
  /// Durations by stage and kind, which replace `times`. Empty, or one entry per stage.
  std::vector<std::array<double, kActionKinds>> stage_times;
  double link_time = 0;                              // one message between neighboring stages on different ranks
  std::map<std::pair<int, int>, double> link_times;  // exceptions from link_time, by sending and receiving rank
  double barrier_time = 0;                           // one barrier of the vocabulary layers (barriers.h)
  std::map<ActionKind, double> barrier_times;        // exceptions from barrier_time, by the kind that waits; I is B
  std::map<Action, double> own;  // if not empty: duration of every single Action except messages; replaces all others
  /// Reductions by stage and bucket of the stage, which replace all other durations of REDUCE. Empty: not given.
  std::vector<std::vector<BucketReduction>> reductions;
  std::vector<double> microbatch_scale;  // by microbatch: factor of its passes and messages; empty: 1
  bool overlap_reduce = true;  // REDUCE overlaps with later computation of its row; false: the row waits for it

  /// The given durations for F, I and W, and B = I + W, on every stage.
  static Durations of(double forward, double input, double weight);
  /// A copy with another duration for one kind.
  Durations with(ActionKind kind, double duration) const;
  /// Duration of the Action.
  double of(const Action& action) const;
  /// The reduction of a REDUCE Action; a default one if `reductions` does not give it.
  BucketReduction reduction(const Action& reduce) const;
  /// The factor of a microbatch; 1 for -1.
  double scale(int microbatch) const;
  /// Time from the last arrival at a barrier of the vocabulary layers to the begin of the Action that waits there.
  double barrier(const Action& action) const;
  /// Duration of the message between two ranks that belongs to a microbatch; -1: to none.
  double link(int from, int to, int microbatch = -1) const;
};

/// One Action of a Timeline, with its start and end in the timeline's unit.
struct Span {
  int rank;
  Stream stream;
  Action action;
  double start;
  double end;

  bool operator==(const Span&) const = default;
};

/// Result of a simulation or a measurement: the start and end of every Action, and summary figures.
struct Timeline {
  std::vector<Span> spans;  // ordered by rank, then by index in the row
  double makespan = 0;
  std::string unit = "s";              // unit of all times
  std::vector<double> busy;            // computation time, by rank
  double bubble = 0;                   // idle fraction: 1 - sum of busy / (ranks * makespan)
  std::vector<int> peak_in_flight;     // maximum number of (stage, microbatch) pairs between F and B or W, by rank
};

/// Simulates the schedule, in time linear in the number of Actions. Throws LogicError if the rows deadlock; validate()
/// then gives the reason.
Timeline simulate(const Schedule& schedule, const Durations& durations);

/// Activations that one microbatch holds on a stage, in any unit: from F to B or I, and from I to W.
struct Kept {
  double for_backward = 1, for_weights = 1;
};
/// Peak of the activations held on each rank, in the unit of Kept. It follows from the order of the rows and does not
/// depend on durations. `by_stage` has one entry per stage. `softmax` is held per microbatch on every rank from S to T
/// or TW.
std::vector<double> peak_kept(const Schedule& schedule, const std::vector<Kept>& by_stage, double softmax = 0);

}  // namespace orthant
