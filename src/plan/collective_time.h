// Seconds of collectives of a mesh on given hardware.
#pragma once

#include "hardware/times.h"
#include "mesh/collective.h"
#include "mesh/mesh.h"

namespace orthant {

/// The number of ranks of a host for each of its cores, if they share them; at least 1.
double ranks_per_core(const Hardware& hardware, const Mesh& mesh);

/// Seconds of the software around one collective: step.call_seconds, and shared_call_seconds if ranks share cores.
double software_seconds(const Hardware& hardware, const Mesh& mesh);

/// Returns the number of ranks of each group over the axes, and the number of hosts of the group on most hosts.
/// Consecutive ranks fill the hosts.
GroupOnHosts group_on_hosts(const Mesh& mesh, const Hardware& hardware, const Axes& axes);

/// Returns true if every rank with coordinate `a` along the axis is on the same host as the rank that has coordinate
/// `b` and otherwise the same coordinates.
bool are_on_same_hosts(const Mesh& mesh, const Hardware& hardware, const std::string& axis, int a, int b);

/// Whether a rank waits for a collective alone, or during other work, which then covers the time of the software around
/// it: another collective, or a pass that has that time.
enum class Waiting { alone, during_other_work };

/// Returns the seconds of `calls` calls of a collective over the axes in which a rank together sends and receives
/// `bytes` (with all_reduce_by_tree: the bytes of the tensors). The group on most hosts counts, because the whole mesh
/// waits for it by the end of the step. Links carry both directions at the same time, so the larger one counts, except
/// in sums into one rank: reduce_in_chunks has a formula of its own for what the root receives, and on GPUs a reduce is
/// a chain, in which no rank receives more than one tensor. Adds software_seconds to each call that is waited for
/// alone.
double collective_seconds(const Mesh& mesh, const Hardware& hardware, CollectiveKind kind, const Axes& axes,
                          int64_t calls, const Moved& bytes, Waiting waiting = Waiting::alone);

}  // namespace orthant
