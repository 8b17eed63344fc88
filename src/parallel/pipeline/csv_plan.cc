// Checks a schedule from a file and turns the problems found into errors with line and cell.
#include "parallel/pipeline/csv_plan.h"

#include <algorithm>
#include <string>
#include <vector>

#include "base/errors.h"
#include "base/text.h"
#include "schedule/passes.h"
#include "schedule/validate.h"

namespace orthant {
namespace {

constexpr size_t kMostProblems = 5;  // maximum number of problems in one error message

/// Whether the plan adds this kind of Action itself: gathering weights, reducing gradients, and optimizer steps.
/// Weights stay unsharded during the row; reductions and steps come after each row.
bool is_added_by_plan(const Action& action) {
  return facts(action.kind).stream == Stream::collective || is_step_action(action);
}

/// Removes the Actions that the plan adds itself, and their entries in `cells`.
void remove_plan_actions(Schedule& schedule, std::vector<std::vector<int>>& cells) {
  for (size_t rank = 0; rank < schedule.rows.size(); ++rank) {
    auto& row = schedule.rows[rank];
    for (size_t i = 0; i < row.size(); ++i) {
      if (is_added_by_plan(row[i])) cells[rank][i] = 0;
    }
    std::erase(cells[rank], 0);
    std::erase_if(row, is_added_by_plan);
  }
}

/// Throws ConfigError for a valid schedule that cannot run: a rank has no Action, or there are vocabulary Actions,
/// which another key of the run file selects.
void require_runnable(const Schedule& schedule, const PositionName& place) {
  for (int rank = 0; rank < static_cast<int>(schedule.rows.size()); ++rank) {
    const auto& row = schedule.rows[static_cast<size_t>(rank)];
    if (row.empty())
      throw ConfigError(
          fmt::format("{} has no Action; every pipeline rank needs a stage; give it passes of a stage, "
                      "or lower parallelism.pipeline_parallel_degree",
                      place(rank, -1)));
    for (int index = 0; index < static_cast<int>(row.size()); ++index) {
      const Action& action = row[static_cast<size_t>(index)];
      if (is_vocabulary(action))
        throw ConfigError(
            fmt::format("{}: {} is a vocabulary pass, which a schedule file must not have; remove S, Z, "
                        "T, TW, E and EB, and set parallelism.vocabulary_parallel",
                        place(rank, index), to_string(action)));
    }
  }
}

}  // namespace

MicrobatchCountMismatch::MicrobatchCountMismatch(int count, const std::string& last)
    : ConfigError(fmt::format("the schedule is for {} microbatch{} ({})", count, count == 1 ? "" : "es", last)),
      microbatches(count) {}

Schedule schedule_from_csv(std::string_view text, int ranks, int microbatches) {
  std::vector<std::vector<int>> cells;
  Schedule schedule = parse_csv(text, &cells);
  remove_plan_actions(schedule, cells);
  if (static_cast<int>(schedule.rows.size()) != ranks)
    throw ConfigError(
        fmt::format("the schedule must have one line for each of {}, but it has {}; add or remove lines, "
                    "or set parallelism.pipeline_parallel_degree to {}",
                    counted(ranks, "pipeline rank"), schedule.rows.size(), schedule.rows.size()));
  const int there = microbatch_count(schedule);
  if (there == 0) throw ConfigError("the schedule has no pass of any microbatch: every pipeline rank needs a stage");
  const auto place = [&](int rank, int index) {
    return index < 0 ? fmt::format("line {}", rank + 1)
                     : fmt::format("line {}, cell {}", rank + 1,
                                   cells[static_cast<size_t>(rank)][static_cast<size_t>(index)]);
  };
  if (there != microbatches) {
    const auto [rank, index] = first_position(schedule, [&](const Action& a) { return microbatch_of(a) + 1 == there; });
    const Action& last = schedule.rows[static_cast<size_t>(rank)][static_cast<size_t>(index)];
    throw MicrobatchCountMismatch(there, fmt::format("{} in {}", to_string(last), place(rank, index)));
  }
  std::vector<std::string> found = problems(schedule, microbatches, {}, place);
  if (!found.empty()) {
    const size_t left_out = found.size() - std::min(found.size(), kMostProblems);
    found.resize(found.size() - left_out);
    if (left_out > 0) found.push_back(fmt::format("and {} more", left_out));
    throw ConfigError("the schedule cannot be carried out:\n  " + join(found, "\n  "));
  }
  require_runnable(schedule, place);
  const bool computes_only = std::none_of(schedule.rows.begin(), schedule.rows.end(), [](const auto& row) {
    return std::any_of(row.begin(), row.end(), is_message);
  });
  return computes_only ? add_messages(schedule) : schedule;
}

}  // namespace orthant
