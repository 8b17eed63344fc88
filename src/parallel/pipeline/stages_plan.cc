// Assigns stages to ranks.
#include "parallel/pipeline/stages_plan.h"

#include "base/errors.h"

namespace orthant {

Schedule round_robin_stages(int ranks, int chunks) {
  ORTHANT_CHECK(ranks >= 1 && chunks >= 1, ranks, chunks);
  Schedule out{.rows = std::vector<std::vector<Action>>(static_cast<size_t>(ranks)), .stage_owner = {}};
  for (int stage = 0; stage < ranks * chunks; ++stage) out.stage_owner.push_back(stage % ranks);
  return out;
}

Schedule v_shaped_stages(int ranks) {
  Schedule out = round_robin_stages(ranks, 2);
  for (int rank = 0; rank < ranks; ++rank) out.stage_owner[static_cast<size_t>(2 * ranks - 1 - rank)] = rank;
  return out;
}

RowBuilder make_row_builder(Schedule& schedule, int rank) {
  const int ranks = static_cast<int>(schedule.rows.size());
  return {.actions = schedule.rows[static_cast<size_t>(rank)], .down = rank, .up = 2 * ranks - 1 - rank};
}

Schedule first_microbatches(Schedule schedule, int microbatches) {
  for (auto& row : schedule.rows)
    std::erase_if(row, [&](const Action& action) { return action.microbatch >= microbatches; });
  return schedule;
}

}  // namespace orthant
