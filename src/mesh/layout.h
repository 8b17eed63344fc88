// Layout: which part of a tensor each rank holds, and what its local values mean. Along each mesh axis a tensor is
//   S  sharded on one of its dims: each coordinate holds a shard;
//   P  partial: each coordinate holds a partial sum, and the value is their sum;
//   I  invariant: equal at all coordinates, and so is its gradient;
//   R  replicated: equal at all coordinates, but its gradient is a partial sum over them (a working copy).
// Example: a tensor of shape [6, 4] on mesh [tensor 2, data 3] with layout [S(tensor, data), -]. The rank at tensor
// coordinate t and data coordinate d holds row 3 t + d, so its local shape is [1, 4].
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "mesh/mesh.h"

namespace orthant {

struct Layout {
  /// For each tensor dim, the axes that split it, outermost first: {"data", "tensor"} splits the dim over data and then
  /// each part over tensor. Shards are balanced (see shard()) and may be uneven or empty.
  std::vector<std::vector<std::string>> split;
  std::vector<std::string> partial;     // P; the order has no meaning
  std::vector<std::string> replicated;  // R; the order has no meaning
  // The tensor is I along every axis that is not named.

  bool operator==(const Layout& other) const;
};

/// How a tensor is placed along one mesh axis, as at the top of this file.
enum class AxisPlacementKind { S, P, R, I };

/// The layout along one axis. For S, `dim` is the tensor dim, and `depth` counts the axes that split this dim outside
/// this one.
struct AxisPlacement {
  AxisPlacementKind kind = AxisPlacementKind::I;
  int dim = -1;
  int depth = -1;

  bool operator==(const AxisPlacement&) const = default;
};

/// Returns the layout along this axis.
AxisPlacement axis_placement(const Layout& layout, std::string_view axis);

/// The layout of the gradient: P and R are swapped, S and I stay. The backward of redistribute(a -> b) is
/// redistribute(dual(b) -> dual(a)).
Layout dual(const Layout& layout);

/// The layout of an unsharded tensor with `dims` dims that is invariant (I) along every axis.
Layout unsharded_layout(int dims);

/// Throws LogicError unless the layout has `dims` dims, every axis belongs to the mesh, and no axis is used twice.
void check_layout(const Mesh& mesh, const Layout& layout, int dims);

/// For each tensor dim, the range of global indices that the rank holds. Only axes with placement S restrict it.
std::vector<Range> local_ranges(const Mesh& mesh, const Layout& layout, std::span<const int64_t> global_shape,
                                int rank);
/// Shape of the rank's shard.
std::vector<int64_t> local_shape(const Mesh& mesh, const Layout& layout, std::span<const int64_t> global_shape,
                                 int rank);
/// Number of elements of a tensor with this shape.
int64_t volume(std::span<const int64_t> shape);

/// Text form "[S(data, tensor), -] P(ring) R(ulysses)": one entry per tensor dim, "-" for a dim that no axis splits.
std::string to_string(const Layout& layout);
/// Parses the text form of to_string(). Throws DataError for any other text.
Layout parse_layout(std::string_view text);

}  // namespace orthant
