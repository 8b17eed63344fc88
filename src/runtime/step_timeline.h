// Measures when the ranks of a pipeline carried out their rows, on one common clock.
#pragma once

#include "comm/comm.h"
#include "runtime/executor.h"
#include "schedule/measured.h"

#include <cstdint>
#include <functional>
#include <vector>

namespace orthant {

/// Gathers the intervals of this rank's pipeline, and returns the measured step on its first pipeline rank; elsewhere
/// the result has no meaning. All ranks of the mesh must call it together, each with the intervals of its own row.
/// Clock offsets come from round trips with the first rank, the shortest of eight for each rank. The peer reads its
/// clock between the two readings of the first rank, so the error is at most half of that round trip
/// (MeasuredStep::clock_error_s).
MeasuredStep gather_timeline(Comm& comm, const Schedule& schedule, int64_t step, const std::vector<Interval>& intervals,
                             const std::function<Clock::time_point()>& now = Clock::now);

}  // namespace orthant
