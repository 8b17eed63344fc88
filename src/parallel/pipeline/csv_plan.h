// Loads a user's own schedule from a CSV file, in the form of PyTorch's pipelining.
#pragma once

#include <string>
#include <string_view>

#include "base/errors.h"
#include "schedule/schedule.h"

namespace orthant {

/// The schedule in the file has another number of microbatches than the run.
struct MicrobatchCountMismatch : ConfigError {
  /// `last` names an Action of the schedule's last microbatch and its position in the file.
  MicrobatchCountMismatch(int microbatches, const std::string& last);
  int microbatches;  // number of microbatches of the schedule
};

/// Parses the text into a schedule that can run: one line per pipeline rank, one Action per cell. The lines decide
/// which rank owns which stage. If there are no messages, they are added. UNSHARD, RESHARD, REDUCE_GRAD, FINALIZE and
/// STEP are ignored, because the plan adds its own; files that plans and PyTorch write may contain them.
/// Throws DataError for a cell that is not an Action, and MicrobatchCountMismatch. Throws ConfigError with line and
/// cell if the step would deadlock, or would not do each microbatch's work exactly once. ConfigError is also thrown if
/// a rank has no Action, or if there are vocabulary Actions.
Schedule schedule_from_csv(std::string_view text, int ranks, int microbatches);

}  // namespace orthant
