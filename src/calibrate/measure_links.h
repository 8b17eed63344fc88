// Measures collectives and messages between the ranks of a Comm.
#pragma once

#include <functional>
#include <vector>

#include "comm/comm.h"
#include "hardware/fit.h"

namespace orthant {

/// The part of the time for measurements that collectives get; messages to one rank get the rest.
inline constexpr double kCollectivesShare = 0.8;

/// A computation of about half a millisecond.
std::function<void()> make_computation();

/// Measures every kind of collective of the model in the group of each rank over `axes`, in all groups at the same
/// time. The time of an operation is the difference that it makes after `compute`, which may be empty. All ranks pass
/// the same `seconds`, about which the measurements take at most; sizes whose operation takes longer than its part of
/// that time are left out, except the two smallest. The result on rank 0 is valid.
std::vector<MeasuredCollective> measure_collectives(Comm& comm, const Axes& axes, double seconds,
                                                    const std::function<void()>& compute);

/// The same for messages between the first two ranks of each group.
std::vector<MeasuredCollective> measure_messages(Comm& comm, const Axes& axes, double seconds,
                                                 const std::function<void()>& compute);

}  // namespace orthant
