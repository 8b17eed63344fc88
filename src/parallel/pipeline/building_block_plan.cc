// Repeats a building block on a grid of time slots, compacts its ends, and chooses the best placement of W.
#include "parallel/pipeline/building_block_plan.h"

#include <algorithm>
#include <array>
#include <deque>
#include <limits>
#include <utility>

#include "base/errors.h"
#include "parallel/pipeline/weights_plan.h"

namespace orthant {
namespace {

constexpr Action kIdle{
    .kind = ActionKind::I, .stage = 0, .microbatch = -1};  // I, because in_flight_change() is 0 for this kind
bool idle(const Action& action) { return action.microbatch < 0; }

/// A grid of time slots with one row per rank. A slot holds one pass or is idle.
class Grid {
 public:
  Grid(const Schedule& stages, int microbatches)
      : owner_(stages.stage_owner), microbatches_(microbatches), rows_(stages.rows.size()) {
    for (auto& each : slot_) each.assign(owner_.size() * static_cast<size_t>(microbatches), 0);
  }

  size_t row_of(int stage) const { return static_cast<size_t>(owner_[static_cast<size_t>(stage)]); }
  int& slot(const Action& action) {
    const size_t kind = action.kind == ActionKind::F ? 0 : action.kind == ActionKind::I ? 1 : 2;
    return slot_[kind][static_cast<size_t>(action.stage * microbatches_ + action.microbatch)];
  }

  void put(const Action& action, int at) {
    auto& row = rows_[row_of(action.stage)];
    if (row.size() <= static_cast<size_t>(at)) row.resize(static_cast<size_t>(at) + 1, kIdle);
    ORTHANT_CHECK(idle(row[static_cast<size_t>(at)]), to_string(action), at);
    row[static_cast<size_t>(at)] = action;
    slot(action) = at;
  }

  /// Puts each W into the first idle slot after its I, in the order in which the I end.
  void fill_weights() {
    for (auto& row : rows_) {
      std::deque<Action> queue;
      for (size_t at = 0; at < row.size() || !queue.empty(); ++at) {
        const Action here = at < row.size() ? row[at] : kIdle;
        if (!idle(here) && here.kind == ActionKind::I)
          queue.push_back({ActionKind::W, here.stage, here.microbatch});
        if (!idle(here) || queue.empty()) continue;
        put(queue.front(), static_cast<int>(at));
        queue.pop_front();
      }
    }
  }

  int most_live() const {
    int most = 0;
    for (const auto& row : rows_) {
      int live = 0;
      for (const Action& action : row) most = std::max(most, live += in_flight_change(action));
    }
    return most;
  }

  /// Moves each pass for which `may` is true to the earliest idle slot from `from` on. The slot must respect the pass's
  /// dependencies, the order within its kind and stage, and at most `most_live` live activations.
  template <typename May>
  void pull(int most_live, int from, May may) {
    std::vector<std::vector<int>> live(rows_.size());
    size_t slots = 0;
    for (size_t rank = 0; rank < rows_.size(); ++rank) {
      int now = 0;
      for (const Action& action : rows_[rank]) live[rank].push_back(now += in_flight_change(action));
      slots = std::max(slots, rows_[rank].size());
    }
    for (size_t at = 0; at < slots; ++at)
      for (size_t rank = 0; rank < rows_.size(); ++rank) {
        if (at >= rows_[rank].size()) continue;
        const Action action = rows_[rank][at];
        if (idle(action) || !may(action, static_cast<int>(at))) continue;
        move_forward(action, at, std::max(from, earliest(action)), live[rank], most_live);
      }
  }

  Schedule schedule() const {
    Schedule out{.rows = rows_, .stage_owner = owner_};
    for (auto& row : out.rows) std::erase_if(row, idle);
    return out;
  }

 private:
  /// The first slot after all Actions on which this one depends, including the previous microbatch of the same kind and
  /// stage.
  int earliest(const Action& action) {
    const auto after = [&](ActionKind kind, int stage, int m) { return slot({kind, stage, m}) + 1; };
    const auto [kind, stage, m] = action;
    const bool first = stage == 0, last = stage + 1 == static_cast<int>(owner_.size());
    int out = m > 0 ? after(kind, stage, m - 1) : 0;
    if (kind == ActionKind::F && !first) out = std::max(out, after(kind, stage - 1, m));
    if (kind == ActionKind::I && !last) out = std::max(out, after(kind, stage + 1, m));
    if (kind == ActionKind::I) out = std::max(out, after(ActionKind::F, stage, m));
    if (kind == ActionKind::W) out = std::max(out, after(ActionKind::I, stage, m));
    return out;
  }

  void move_forward(const Action& action, size_t from, int first, std::vector<int>& live, int most_live) {
    auto& row = rows_[row_of(action.stage)];
    size_t to = static_cast<size_t>(first);
    for (size_t at = to; at < from && action.kind == ActionKind::F; ++at)
      if (live[at] >= most_live) to = at + 1;
    while (to < from && !idle(row[to])) ++to;
    if (to >= from) return;
    for (size_t at = to; at < from; ++at) live[at] += in_flight_change(action);
    row[from] = kIdle;
    row[to] = action;
    slot(action) = static_cast<int>(to);
  }

  std::vector<int> owner_;
  int microbatches_;
  std::vector<std::vector<Action>> rows_;
  std::array<std::vector<int>, 3> slot_;  // slots of F, I and W, by stage and microbatch
};

/// The Actions in the slots in which they start if every pass takes one slot. W that start in slot `weights_until` or
/// later are left out.
Grid retimed(const Schedule& schedule, int microbatches, int weights_until) {
  Grid grid(schedule, microbatches);
  for (const Span& span : simulate(schedule, Durations::of(1, 1, 1)).spans)
    if (span.action.kind != ActionKind::W || span.start < weights_until)
      grid.put(span.action, static_cast<int>(span.start));
  return grid;
}

}  // namespace

Schedule repeat_building_block(const BuildingBlock& block, int microbatches, const Durations& durations) {
  ORTHANT_CHECK(microbatches >= 1, microbatches);
  Grid raw(block.stages, microbatches);
  for (int stage = 0; stage < static_cast<int>(block.forward.size()); ++stage)
    for (int m = 0; m < microbatches; ++m) {
      raw.put({ActionKind::F, stage, m}, block.forward[static_cast<size_t>(stage)] + m * block.interval);
      raw.put({ActionKind::I, stage, m}, block.backward[static_cast<size_t>(stage)] + m * block.interval);
    }
  raw.fill_weights();
  const int most_live = raw.most_live();
  // The steady phase lasts from I of the first microbatch on stage 0 to F of the last microbatch on stage 0.
  const Action last_in{ActionKind::F, 0, microbatches - 1};
  const int steady_from = raw.slot({ActionKind::I, 0, 0}), steady_until = raw.slot(last_in);
  raw.pull(most_live, 0, [&](const Action&, int at) { return at < steady_from || at > steady_until; });

  // Cool-down: W that start in the slot just before the last F of stage 0, or later, are removed and placed again into
  // gaps. After this F has had time to reach the last rank, I move to the earliest slots possible.
  const Schedule pulled = raw.schedule();
  constexpr int kAll = std::numeric_limits<int>::max();
  const int end = retimed(pulled, microbatches, kAll).slot(last_in);
  Grid tail = retimed(pulled, microbatches, end - 1);
  tail.pull(most_live, end + static_cast<int>(block.stages.rows.size()),
            [](const Action& action, int) { return action.kind == ActionKind::I; });
  const Schedule order = tail.schedule();
  Schedule bare = order;
  for (auto& row : bare.rows) std::erase_if(row, [](const Action& action) { return action.kind == ActionKind::W; });
  Schedule best;
  double best_s = std::numeric_limits<double>::infinity();
  const Durations equal = Durations::of(1, 1, 1);
  using Way = std::pair<const Schedule*, const Durations*>;
  for (const auto& [rows, times] : {Way{&order, &equal}, Way{&order, &durations}, Way{&bare, &durations}}) {
    Schedule each = place_weights(*rows, most_live, *times);
    const double makespan_s = simulate(each, durations).makespan;
    if (makespan_s >= best_s) continue;
    best_s = makespan_s;
    best = std::move(each);
  }
  return best;
}

}  // namespace orthant
