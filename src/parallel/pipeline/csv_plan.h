// A schedule of one's own, from a file in the form that PyTorch's pipelining writes and reads.
#pragma once

#include <string>
#include <string_view>

#include "base/errors.h"
#include "schedule/schedule.h"

namespace orthant {

/// A schedule of another number of microbatches than the run's.
struct OtherMicrobatches : ConfigError {
  /// `last`: an Action of the last of them, and where it stands.
  OtherMicrobatches(int microbatches, const std::string& last);
  int microbatches;  // the schedule's
};

/// The text as a Schedule that can run: one line a pipeline rank, one Action a cell; stages stand where the lines put
/// them. Computations alone get their messages. DataError where a cell is no Action; ConfigError, with line and cell of
/// what is wrong, where the step would hang or not do each microbatch's work once, where a rank has nothing to do, and
/// for passes of the vocabulary; OtherMicrobatches. UNSHARD, RESHARD, REDUCE_GRAD, SETTLE and STEP are the plan's:
/// those of a file, which plans and PyTorch write, are left out.
Schedule schedule_from_csv(std::string_view text, int ranks, int microbatches);

}  // namespace orthant
