// Where stages stand on pipeline ranks, before any schedule fills the rows.
#pragma once

#include "schedule/schedule.h"

namespace orthant {

/// `chunks` stages a rank, dealt round: stage c * ranks + r on rank r. The rows are empty.
Schedule looped(int ranks, int chunks);

/// Two stages a rank, down and back up: rank r has stages r and 2 * ranks - 1 - r. The first and the last stage meet on
/// rank 0, and the last rank hands on to itself. The rows are empty.
Schedule v_shaped(int ranks);

/// The same orders for the first `microbatches` alone. Microbatches do not depend on each other, so what is left of a
/// schedule that ends, ends too, and holds no more.
Schedule first_microbatches(Schedule schedule, int microbatches);

}  // namespace orthant
