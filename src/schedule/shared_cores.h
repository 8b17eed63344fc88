// Ranks that share the cores of a host: how long a timeline takes if fewer cores than ranks carry it out.
//
// The model: with a ranks that compute or copy at the same time on c cores, an interval of the timeline takes
// max(1, a / c) times as long if all ranks carry out the same row: in the long run the cores are divided evenly. The
// ranks of a pipeline wait for each other after every pass, so the slowest counts: one of ceil(a / c) ranks on the same
// core. All events of the timeline keep their order. Idle ranks leave their cores to others.
//
// Example: a pipeline rank computes from 0 to 4 s, two of the next stage from 2 to 4 s. On two cores this takes
// 2 + 2 * ceil(3 / 2) = 6 s.
#pragma once

#include <cstdint>
#include <vector>

#include "schedule/simulate.h"

namespace orthant {

/// Collectives inside a host copy, which occupies cores; those between hosts wait for a link.
enum class Collectives { copying, waiting_for_link };

/// Returns the seconds that the part of the timeline before `until_s` takes on a host with this number of cores.
/// `ranks_of_row`: number of ranks of the host that carry out each row. Computations occupy cores;
/// messages between stages do not. Requires cores >= 1. Takes O(n log n) time for n Actions.
double seconds_on_shared_cores(const Timeline& timeline, double until_s, const std::vector<int64_t>& ranks_of_row,
                               int64_t cores, Collectives collectives = Collectives::copying);

}  // namespace orthant
