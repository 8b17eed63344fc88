#include "parallel/data/zero_plan.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>

#include "base/errors.h"

namespace orthant {
namespace {

using enum ActionKind;

// The Action after which the gradients of its stage have all of one microbatch.
bool completes_backward(const Action& action) { return action.kind == B || action.kind == W; }

}  // namespace

Reshard reshard_named(const std::string& name) {
  const auto found = std::ranges::find(kReshardNames, name);
  ORTHANT_CHECK(found != std::end(kReshardNames), name);
  return static_cast<Reshard>(found - std::begin(kReshardNames));
}

std::string name_of(Reshard reshard) { return kReshardNames[static_cast<size_t>(reshard)]; }

bool reduces_each_microbatch(int64_t zero_stage, Reshard reshard) {
  return zero_stage == 2 || (zero_stage == 3 && reshard != Reshard::step);
}

const std::vector<int>& ShardedUnits::units_of(const Action& pass) const {
  return (pass.kind == F ? forward : backward)[static_cast<size_t>(pass.stage)];
}

std::vector<Action> add_gathers(const std::vector<Action>& row, const ShardedUnits& units, Reshard reshard) {
  std::vector<size_t> uses;         // indices of the passes that read sharded weights
  std::map<int, size_t> last_use;  // by unit
  for (size_t i = 0; i < row.size(); ++i) {
    if (!reads_weights(row[i]) || units.units_of(row[i]).empty()) continue;
    uses.push_back(i);
    for (const int unit : units.units_of(row[i])) last_use[unit] = i;
  }
  std::vector<Action> out;
  std::set<int> gathered;
  const auto gather = [&](size_t use, size_t most) {
    if (use >= uses.size()) return;
    for (const int unit : units.units_of(row[uses[use]])) {
      if (gathered.size() < most && gathered.insert(unit).second) out.push_back({UNSHARD, unit});
    }
  };
  const size_t unlimited = row.size(), most_ahead = reshard == Reshard::microbatch ? kMostGatheredUnits : unlimited;
  std::map<int, int> waiting;  // microbatches between F and backward, by stage
  size_t use = 0;
  for (size_t i = 0; i < row.size(); ++i) {
    const bool reads = use < uses.size() && uses[use] == i;
    if (reads) gather(use, unlimited), gather(use + 1, most_ahead);
    out.push_back(row[i]);
    if (!reads) continue;
    ++use;
    const bool forward = row[i].kind == F;
    waiting[row[i].stage] += forward ? 1 : -1;
    for (const int unit : units.units_of(row[i])) {
      const bool idle = !forward && waiting[unit] == 0;
      const bool frees = last_use[unit] == i || reshard == Reshard::microbatch || (reshard == Reshard::never && idle);
      if (!frees) continue;
      out.push_back({RESHARD, unit});
      gathered.erase(unit);
    }
  }
  return out;
}

Schedule reduce_after_backward(const Schedule& schedule, const ShardedUnits& units, bool each_microbatch) {
  Schedule out{.rows = std::vector<std::vector<Action>>(schedule.rows.size()), .stage_owner = schedule.stage_owner};
  for (size_t rank = 0; rank < schedule.rows.size(); ++rank) {
    const auto& row = schedule.rows[rank];
    std::map<int, size_t> last;  // index of the last backward, by stage
    for (size_t i = 0; i < row.size(); ++i) {
      if (completes_backward(row[i])) last[row[i].stage] = i;
    }
    const auto moves = [&](const Action& action) {
      const auto& buckets = units.buckets[static_cast<size_t>(action.stage)];
      return action.kind == REDUCE && std::ranges::find(buckets, action.microbatch) != buckets.end();
    };
    for (size_t i = 0; i < row.size(); ++i) {
      if (moves(row[i])) continue;
      out.rows[rank].push_back(row[i]);
      if (!completes_backward(row[i]) || (!each_microbatch && last[row[i].stage] != i)) continue;
      const auto& buckets = units.buckets[static_cast<size_t>(row[i].stage)];
      for (size_t b = buckets.size(); b-- > 0;) out.rows[rank].push_back({REDUCE, row[i].stage, buckets[b]});
    }
  }
  return out;
}

}  // namespace orthant
