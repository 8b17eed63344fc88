#include "parallel/pipeline/csv_plan.h"

#include <algorithm>
#include <string>
#include <vector>

#include "base/errors.h"
#include "base/text.h"
#include "parallel/pipeline/messages_plan.h"
#include "schedule/validate.h"

namespace orthant {
namespace {

constexpr size_t kMostProblems = 5;  // in one message

}  // namespace

Schedule schedule_from_csv(std::string_view text, int ranks, int microbatches) {
  std::vector<std::vector<int>> cells;
  Schedule schedule = parse_csv(text, &cells);
  if (static_cast<int>(schedule.rows.size()) != ranks)
    throw ConfigError(fmt::format("the schedule has {} for {}: it takes one line a rank",
                                  counted(static_cast<int64_t>(schedule.rows.size()), "line"),
                                  counted(ranks, "pipeline rank")));
  if (const int there = microbatch_count(schedule); there != microbatches)
    throw ConfigError(fmt::format("the schedule is for {} microbatches, and the run has {}", there, microbatches));
  const auto place = [&](int rank, int index) {
    return index < 0 ? fmt::format("line {}", rank + 1)
                     : fmt::format("line {}, cell {}", rank + 1,
                                   cells[static_cast<size_t>(rank)][static_cast<size_t>(index)]);
  };
  std::vector<std::string> found = problems(schedule, microbatches, {}, place);
  if (!found.empty()) {
    const size_t left_out = found.size() - std::min(found.size(), kMostProblems);
    found.resize(found.size() - left_out);
    if (left_out > 0) found.push_back(fmt::format("and {} more", left_out));
    throw ConfigError("the schedule cannot be carried out:\n  " + join(found, "\n  "));
  }
  for (size_t rank = 0; rank < schedule.rows.size(); ++rank)
    for (size_t index = 0; index < schedule.rows[rank].size(); ++index)
      if (const Action& action = schedule.rows[rank][index]; is_vocabulary(action))
        throw ConfigError(fmt::format("{}, {}: runs do not cut the vocabulary layers yet; take such Actions out",
                                      place(static_cast<int>(rank), static_cast<int>(index)), to_string(action)));
  const bool computes_only = std::none_of(schedule.rows.begin(), schedule.rows.end(), [](const auto& row) {
    return std::any_of(row.begin(), row.end(), is_message);
  });
  return computes_only ? add_messages(schedule) : schedule;
}

}  // namespace orthant
