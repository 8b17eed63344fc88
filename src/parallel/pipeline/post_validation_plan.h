// Post-validation of the optimizer step: Qi et al. 2023, "Zero Bubble Pipeline Parallelism", arXiv 2401.10241,
// section 4. The step needs the norm of all gradients, and whether they are finite. An all-reduce would make every rank
// wait for the last one, although the ranks finish one after the other, as they began. Instead, partial statistics
// travel from rank to rank. Each rank adds its own, sends them to the next rank, and steps at once if the statistics so
// far permit it. The full statistics come back while the first forwards of the next step run. If they forbid the step,
// the step is undone and repeated, and so are those forwards.
//
// With n statistics of 8 bytes, every rank except the last sends 8 n bytes to the next rank, and every rank except the
// first sends 8 n bytes back.
#pragma once

#include "schedule/schedule.h"

namespace orthant {

/// A pass that adds STEP at the end of each row, and FINALIZE near its beginning. It runs after messages and reductions
/// are added. On rank r of p, FINALIZE comes after p-r forwards, when the full statistics should have arrived. The last
/// rank has them when rank r has done p-1-r forwards, and one more forward covers their way back. FINALIZE comes
/// earlier where a valid schedule requires it (schedule/validate.h). A RECV is placed on the same side of FINALIZE as
/// its SEND. `continues`: by stage, whether it and the stage before it are parts of one, whose forwards count as one;
/// empty if there are no such stages. Throws LogicError if a rank has no stage.
Schedule with_post_validation(Schedule schedule, const std::vector<bool>& continues = {});

}  // namespace orthant
