// Ranks that share the cores of a host: how long a timeline takes if fewer cores than ranks carry it out.
//
// The model: all ranks that compute or copy at the same time progress equally fast. With a such ranks on c cores, each
// progresses at the rate min(1, c / a). All events of the timeline then keep their order, and its time only runs
// slower: an interval of the timeline takes max(1, a / c) times as long. Idle ranks of one stage leave their cores to
// others.
//
// Example: a rank computes from 0 to 4 s, three others from 2 to 4 s. On two cores this takes 2 + 2 * (4 / 2) = 6 s.
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
