// simulate(): when each Action of a Schedule starts and ends under given durations. Bubble, makespan and peak live
// activations are read off the result; the plan prints it and draw.h pictures it.
//
// A rank computes in its row's order, one Action at a time. Communication is posted where it stands in the row and runs
// beside the computation on its own lane: a SEND begins when it is posted and its lane is free, and takes link_s; a
// RECV ends when the message is there; a computation waits for what it reads. Without SEND and RECV in the schedule, a
// stage on another rank sees a result link_s after it is made. UNSHARD is waited for by its stage's computation. What
// waits at a barrier of the vocabulary layers goes on barrier_s after the last rank has fed it. STEP and SETTLE begin
// link_s after the rank that they wait for has begun its own: the k-th of a row with the k-th of the other.
#pragma once

#include <array>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "schedule/action.h"
#include "schedule/schedule.h"

namespace orthant {

struct Durations {
  std::array<double, kActionKinds> seconds{};  // by kind; SEND and RECV take link() instead
  /// By stage, in place of `seconds`; empty, or one entry a stage.
  std::vector<std::array<double, kActionKinds>> stage_seconds;
  double link_s = 0;             // one message between neighboring stages on different ranks
  std::map<std::pair<int, int>, double> links_s;  // the same from one rank to another, where it is not link_s
  double barrier_s = 0;          // one collective of the vocabulary layers, beside the rows
  std::map<Action, double> own;  // where it is not empty, of each single Action, in place of all of these
  std::vector<double> reduce_s;  // by gradient bucket, in place of seconds[REDUCE]
  bool overlap_reduce = true;    // REDUCE runs beside later computation of its row; false: the row waits for it

  /// F, I and W as given and B = I + W, the same on every stage.
  static Durations of(double forward_s, double input_s, double weight_s);
  /// The same with another time of one kind.
  Durations with(ActionKind kind, double seconds_of_it) const;
  double of(const Action& action) const;
  /// Of one message from rank to rank.
  double link(int from, int to) const;
};

struct Span {
  int rank;
  Lane lane;
  Action action;
  double start_s;
  double end_s;

  bool operator==(const Span&) const = default;
};

struct Timeline {
  std::vector<Span> spans;  // by rank, then in the row's order
  double makespan_s = 0;
  std::string unit = "s";              // what the durations were given in, where it was not seconds
  std::vector<double> busy_s;          // computing, by rank
  double bubble = 0;                   // idle share: 1 - sum of busy_s / (ranks * makespan_s)
  std::vector<int> peak_live;          // by rank: most (stage, microbatch) pairs between their F and their B or W
};

/// LogicError where the row orders cannot be carried out (see validate.h, which says why). Linear in the Actions.
Timeline simulate(const Schedule& schedule, const Durations& durations);

/// What one microbatch keeps on a stage, in any unit: from F to B or I, and what is left of it from I to W.
struct Kept {
  double for_backward = 1, for_weights = 1;
};
/// By rank: the most that it keeps at once. A row's order decides, not its times. `by_stage` has an entry a stage;
/// `softmax` is what one microbatch keeps on every rank from S to T or TW.
std::vector<double> peak_kept(const Schedule& schedule, const std::vector<Kept>& by_stage, double softmax = 0);

}  // namespace orthant
