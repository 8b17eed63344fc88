// redistribute() plans how a tensor changes from one layout to another: the cheapest list of single-axis collectives.
// Communication inside operators follows from it: Megatron's f and g, sequence parallelism, ZeRO gathers, Ulysses. Its
// backward is redistribute() between the dual layouts.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "mesh/collective.h"
#include "mesh/layout.h"
#include "mesh/mesh.h"

namespace orthant {

/// Fixed cost of a communicating step, in bytes: about the bytes that a link carries during the latency of a message.
inline constexpr int64_t kStepBytes = 16 << 10;

/// The path of least cost: the sum over its communicating steps of the busiest rank's bytes plus kStepBytes. Ties go to
/// fewer steps, then to a fixed order, so that all ranks get the same list. Only the innermost axis of a dim's split
/// can be split off or joined. An axis moves only if its own placement changes, or if an axis outside it on the same
/// dim must move. A value becomes P (by pad or mask_replicas) only if `to` requires it. Axes of size 1 need no step,
/// and Collective::after omits them. Throws LogicError for layouts that do not fit the mesh or the shape. Example on
/// [ring 4]: [S(ring), -] to [-, S(ring)] is one all_to_all, cheaper than all_gather and slice.
std::vector<Collective> redistribute(const Mesh& mesh, const Layout& from, const Layout& to,
                                     std::span<const int64_t> global_shape, int64_t element_bytes);

}  // namespace orthant
