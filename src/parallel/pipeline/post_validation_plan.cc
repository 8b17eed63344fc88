// Finds how many Actions of each row can come before FINALIZE, and inserts FINALIZE and STEP.
#include "parallel/pipeline/post_validation_plan.h"

#include <algorithm>
#include <set>

#include "base/errors.h"
#include "schedule/barriers.h"

namespace orthant {
namespace {

using Row = std::vector<Action>;

/// Length of the longest prefix of the row that writes no gradients and has at most `forwards` forwards.
size_t first_part(const Schedule& schedule, const std::vector<bool>& continues, const Row& row, int forwards) {
  for (size_t i = 0; i < row.size(); ++i) {
    const auto stage = static_cast<size_t>(row[i].stage);
    const bool begins = row[i].kind == ActionKind::F && !(stage < continues.size() && continues[stage]);
    if (writes_gradients(schedule, row[i]) || (begins && forwards-- == 0)) return i;
  }
  return row.size();
}

/// The SENDs in these prefixes of the rows, given by their lengths.
std::set<Action> sent_in(const Schedule& schedule, const std::vector<size_t>& ends) {
  std::set<Action> sent;
  for (size_t rank = 0; rank < ends.size(); ++rank)
    for (size_t i = 0; i < ends[rank]; ++i)
      if (facts(schedule.rows[rank][i].kind).stream == Stream::send) sent.insert(schedule.rows[rank][i]);
  return sent;
}

/// Shortens the prefixes until every forward in them reads only messages that are sent in another prefix. Returns the
/// SENDs in them.
std::set<Action> close_parts(const Schedule& schedule, std::vector<size_t>& ends) {
  const auto owner = [&](int stage) { return schedule.stage_owner[static_cast<size_t>(stage)]; };
  while (true) {
    const std::set<Action> sent = sent_in(schedule, ends);
    bool closed = true;
    for (size_t rank = 0; rank < ends.size(); ++rank)
      for (size_t i = 0; i < ends[rank]; ++i) {
        const auto [kind, stage, m] = schedule.rows[rank][i];
        if (kind != ActionKind::F || stage == 0 || owner(stage - 1) == owner(stage)) continue;
        if (!sent.contains({ActionKind::SEND_F, stage - 1, m})) ends[rank] = i, closed = false;
      }
    if (closed) return sent;
  }
}

}  // namespace

Schedule with_post_validation(Schedule schedule, const std::vector<bool>& continues) {
  const size_t ranks = schedule.rows.size();
  std::vector<size_t> ends;
  for (size_t rank = 0; rank < ranks; ++rank)
    ends.push_back(first_part(schedule, continues, schedule.rows[rank], static_cast<int>(ranks - rank)));
  const std::set<Action> sent = close_parts(schedule, ends);
  const std::vector<int> first_stage = first_stages(schedule);
  for (size_t rank = 0; rank < ranks; ++rank) {
    ORTHANT_CHECK(first_stage[rank] >= 0, rank, "has no stage");
    Row before, behind;
    for (size_t i = 0; i < schedule.rows[rank].size(); ++i) {
      const Action& action = schedule.rows[rank][i];
      const bool received = facts(action.kind).stream == Stream::receive;
      const bool comes_first = received ? sent.contains(matching_message(action)) : i < ends[rank];
      (comes_first ? before : behind).push_back(action);
    }
    before.push_back({ActionKind::FINALIZE, first_stage[rank]});
    before.insert(before.end(), behind.begin(), behind.end());
    before.push_back({ActionKind::STEP, first_stage[rank]});
    schedule.rows[rank] = std::move(before);
  }
  return schedule;
}

}  // namespace orthant
