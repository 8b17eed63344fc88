// When the ranks of a pipeline carried out their rows, by one clock.
#pragma once

#include "comm/comm.h"
#include "runtime/executor.h"
#include "schedule/measured.h"

#include <cstdint>
#include <functional>
#include <vector>

namespace orthant {

/// What the pipeline that a rank belongs to did, on its first rank; elsewhere it means nothing. All ranks of the mesh
/// call it together, each with the periods of its own row. Clocks are compared in one exchange with each rank: the
/// answer was given between question and answer, so half of that time is the most by which they can be wrong.
MeasuredStep gather_timeline(Comm& comm, const Schedule& schedule, int64_t step, const std::vector<Period>& periods,
                             const std::function<Clock::time_point()>& now = Clock::now);

}  // namespace orthant
