// redistribute(): from one layout of a tensor to another, as the cheapest list of single-axis Collectives. All the
// communication inside operators (Megatron's f and g, sequence parallelism, ZeRO gathers, Ulysses) follows from it, and
// its backward is redistribute() between the dual layouts.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "mesh/collective.h"
#include "mesh/layout.h"
#include "mesh/mesh.h"

namespace orthant {

/// What a communicating step costs beside its bytes: about what a link carries while a message is on its way.
inline constexpr int64_t kStepBytes = 16 << 10;

/// The path with the fewest bytes (summed over its steps, each counted at its busiest rank and with kStepBytes), then
/// the fewest steps, then a fixed order, so that all ranks get the same list. Only the innermost axis of a dim's split
/// can be cut or joined. An axis moves only if its own placement changes or an axis outside it in the same dim has to
/// move; a value becomes P (by pad or keep_one) only where `to` says so. Axes of size 1 make no steps, and
/// Collective::after does not name them. LogicError for layouts that do not fit the mesh or the shape.
std::vector<Collective> redistribute(const Mesh& mesh, const Layout& from, const Layout& to,
                                     std::span<const int64_t> global_shape, int64_t element_bytes);

}  // namespace orthant
