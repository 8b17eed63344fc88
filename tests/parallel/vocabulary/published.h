// The oracle of 1F1B with vocabulary parallelism, in the closed form of the paper: every rank repeats one pattern, and
// the durations decide the position of the output layer in it. Yeung et al. 2024, arXiv 2411.05288.
//
// Let p be the number of ranks, k the number of barriers, and f, b and o the durations of a forward, a backward and one
// rank's shard of the output layer. Rank r holds p - r + k microbatches, and the bubble is at most (p-1)(f+b) + k f.
// The form requires o <= f; add_vocabulary() covers larger o and all other schedules.
#pragma once

#include <algorithm>
#include <cmath>

#include "base/errors.h"
#include "parallel/pipeline/stages_plan.h"
#include "parallel/vocabulary/plan.h"

namespace orthant {
namespace published {

using enum ActionKind;

/// The quantities that all ranks share.
struct Pattern {
  int ranks, microbatches, barriers;
  ActionKind second;  // T or TW
  bool input;
  double forward_s, backward_s, second_s, interval_s, barrier_s;

  /// Number of additional output passes before a rank's first backward. The rank runs one in each interval until the
  /// gradient arrives from the last rank.
  int more(int rank) const {
    const double wait_s = (ranks - 1 - rank) * backward_s - forward_s + barrier_s;
    return std::max(0, static_cast<int>(std::ceil(wait_s / interval_s)));
  }
  /// Whether the output layer comes before the forward in the pattern that a rank repeats.
  bool output_first(int rank) const {
    const double left_s = (ranks - 1 - rank) * backward_s - more(rank) * interval_s;
    return left_s >= -backward_s + std::max(0.0, barrier_s - second_s);
  }
};

/// Builds one rank's row. Passes of microbatches that do not exist are left out.
class Row {
 public:
  Row(const Pattern& pattern, int rank, std::vector<Action>& actions)
      : pattern_(pattern), rank_(rank), of_first_(pattern.more(0)), actions_(actions) {}

  void fill() {
    const auto& [p, m, k, second, input, f, b, t, interval, barrier] = pattern_;
    const int below = p - 1 - rank_;
    while (next_input_ < std::min(rank_ + 2, p + 1)) lookup(next_input_);
    for (int i = 0; i <= below; ++i) {
      if (i > 0 && next_input_ <= p) lookup(next_input_);
      add(F, i);
    }
    output(0);
    if (k == 2) lookup(p + 1);
    add(F, below + 1);
    if (k == 2) output(1), add(F, below + 2);
    int next_output = k;
    for (int i = 0; i < pattern_.more(rank_); ++i) output(next_output++);
    for (int i = 0; i < m; ++i) {
      add(B, i);
      if (pattern_.output_first(rank_)) output(next_output++), add(F, below + 1 + k + i);
      else add(F, below + 1 + k + i), output(next_output++);
    }
    while (input && next_gradient_ < m) add(EB, next_gradient_++);
  }

 private:
  void add(ActionKind kind, int m) {
    if (m >= 0 && m < pattern_.microbatches) actions_.push_back({kind, rank_, m});
  }
  void lookup(int m) {
    if (pattern_.input) add(E, m);
    next_input_ = std::max(next_input_, m + 1);
  }
  /// The n-th turn of the output layer: T or TW of the previous microbatch, then S of microbatch n. The passes of the
  /// input layer follow in the same turn.
  void output(int n) {
    add(pattern_.second, n - 1);
    add(S, n);
    const int turn = n - pattern_.barriers - of_first_;
    if (turn >= -1) lookup(turn + pattern_.barriers + pattern_.ranks + 1);
    if (turn >= 1 && pattern_.input) add(EB, next_gradient_++);
  }

  const Pattern& pattern_;
  const int rank_, of_first_;  // of_first_: additional output passes of rank 0
  std::vector<Action>& actions_;
  int next_input_ = 0, next_gradient_ = 0;
};

}  // namespace published

/// The published schedule for algorithm_1 or algorithm_2. It uses the durations of F, B, S, T or TW, and barrier_s.
/// Throws LogicError for the naive algorithm or no microbatch.
inline Schedule vocabulary_one_f_one_b(int ranks, int microbatches, const VocabularyAlgorithm& algorithm,
                                       const Durations& durations, bool input = true) {
  using namespace published;
  ORTHANT_CHECK(microbatches >= 1 && algorithm.passes.size() == 2, microbatches, algorithm.name);
  const auto seconds = [&](ActionKind kind) { return durations.times[static_cast<size_t>(kind)]; };
  const ActionKind second = algorithm.passes.back();
  const Pattern pattern{.ranks = ranks, .microbatches = microbatches, .barriers = algorithm.barriers, .second = second,
                        .input = input, .forward_s = seconds(F), .backward_s = seconds(B), .second_s = seconds(second),
                        .interval_s = seconds(F) + seconds(B) + seconds(S) + seconds(second),
                        .barrier_s = durations.barrier_time};
  Schedule out = round_robin_stages(ranks, 1);
  for (int rank = 0; rank < ranks; ++rank) Row(pattern, rank, out.rows[static_cast<size_t>(rank)]).fill();
  return out;
}

}  // namespace orthant
