// Simulates the rows and inserts W into the gaps as they appear.
#include "parallel/pipeline/weights_plan.h"

#include <algorithm>
#include <deque>

#include "base/errors.h"
#include "schedule/results.h"

namespace orthant {
namespace {

/// Carries out the rows, each rank as far as it can go, and records the resulting order with the W added.
class Placement {
 public:
  Placement(const Schedule& in, int most_live, const Durations& durations)
      : in_(in),
        most_live_(most_live),
        durations_(durations),
        ends_s_(stage_count(in), microbatch_count(in), kUnknown_s),
        ranks_(in.rows.size()),
        out_{.rows = std::vector<std::vector<Action>>(in.rows.size()), .stage_owner = in.stage_owner} {}

  Schedule run() {
    std::deque<size_t> ready;
    for (size_t rank = 0; rank < ranks_.size(); ++rank) ready.push_back(rank);
    for (; !ready.empty(); ready.pop_front())
      while (step(ready.front(), ready)) {
      }
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      ORTHANT_CHECK(ranks_[rank].next == in_.rows[rank].size(), rank, "the order cannot be carried out");
      while (!ranks_[rank].queue.empty()) put_weight(rank);
    }
    return std::move(out_);
  }

 private:
  struct Rank {
    size_t next = 0;
    double free_s = 0;
    int live = 0;
    std::deque<Action> queue;  // W that can run, because their I is done
  };

  size_t owner(int stage) const { return static_cast<size_t>(in_.stage_owner[static_cast<size_t>(stage)]); }

  void put(size_t rank, const Action& action) {
    Rank& state = ranks_[rank];
    out_.rows[rank].push_back(action);
    state.free_s += durations_.of(action);
    state.live += in_flight_change(action);
    if (action.kind != ActionKind::W) ends_s_[action] = state.free_s;
  }

  void put_weight(size_t rank) {
    put(rank, ranks_[rank].queue.front());
    ranks_[rank].queue.pop_front();
  }

  bool step(size_t rank, std::deque<size_t>& ready) {
    Rank& state = ranks_[rank];
    if (state.next == in_.rows[rank].size()) return false;
    const Action action = in_.rows[rank][state.next];
    if (action.kind == ActionKind::W) {
      if (!state.queue.empty()) put_weight(rank);
      ++state.next;
      return true;
    }
    const bool forward = action.kind == ActionKind::F;
    const Action source = producer_of(action), reader = consumer_of(action);
    double start_s = state.free_s;
    if (ends_s_.has(source)) {
      const double made_s = ends_s_[source];
      if (made_s == kUnknown_s) return false;
      const int maker = owner(source.stage), reader_rank = static_cast<int>(rank);
      start_s = std::max(start_s, made_s + (maker == reader_rank ? 0 : durations_.link(maker, reader_rank)));
    }
    const auto fits = [&] { return state.free_s + durations_.of(state.queue.front()) <= start_s; };
    while (!state.queue.empty() && (fits() || (forward && state.live >= most_live_))) put_weight(rank);
    state.free_s = std::max(state.free_s, start_s);
    put(rank, action);
    if (action.kind == ActionKind::I) state.queue.push_back({ActionKind::W, action.stage, action.microbatch});
    if (ends_s_.has(reader) && owner(reader.stage) != rank) ready.push_back(owner(reader.stage));
    ++state.next;
    return true;
  }

  const Schedule& in_;
  const int most_live_;
  const Durations& durations_;
  PerResult<double> ends_s_;
  std::vector<Rank> ranks_;
  Schedule out_;
};

}  // namespace

Schedule place_weights(const Schedule& schedule, int most_live, const Durations& durations) {
  return Placement(schedule, most_live, durations).run();
}

}  // namespace orthant
