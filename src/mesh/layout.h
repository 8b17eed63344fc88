// Layout: which part of a tensor a rank holds, and what its value means there. Seen along one mesh axis a tensor is
//   S  split on one of its dims: each position holds a shard;
//   P  partial: each position holds a summand, the value is their sum;
//   I  invariant: equal at all positions, and so is its gradient;
//   R  replicated: equal at all positions, its gradient still a partial sum over them (a working copy).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "mesh/mesh.h"

namespace orthant {

struct Layout {
  /// For each tensor dim the axes that split it, outermost cut first: {"data", "tensor"} cuts the dim over data, then
  /// each piece over tensor. Shards are balanced (see shard()) and may be uneven or empty.
  std::vector<std::vector<std::string>> split;
  std::vector<std::string> partial;     // P; order means nothing
  std::vector<std::string> replicated;  // R; order means nothing
  // Every other axis is I.

  bool operator==(const Layout& other) const;
};

enum class Placing { S, P, R, I };

/// The layout seen along one axis: what, and for S the tensor dim and how many axes cut that dim before this one.
struct Placement {
  Placing what = Placing::I;
  int dim = -1;
  int depth = -1;

  bool operator==(const Placement&) const = default;
};

Placement placement(const Layout& layout, std::string_view axis);

/// The layout of the gradient: P and R change places, S and I stay. The backward of redistribute(a -> b) is
/// redistribute(dual(b) -> dual(a)).
Layout dual(const Layout& layout);

/// The tensor whole and invariant over every axis.
Layout whole(int dims);

/// LogicError unless every axis is the mesh's and used once, and the layout has `dims` dims.
void check_layout(const Mesh& mesh, const Layout& layout, int dims);

/// For each dim the global indices that the rank holds. Replicated and partial axes do not cut.
std::vector<Range> local_ranges(const Mesh& mesh, const Layout& layout, std::span<const int64_t> global_shape,
                                int rank);
std::vector<int64_t> local_shape(const Mesh& mesh, const Layout& layout, std::span<const int64_t> global_shape,
                                 int rank);
/// Number of elements.
int64_t volume(std::span<const int64_t> shape);

/// "[S(data, tensor), -] P(ring) R(ulysses)": one entry a dim, "-" where none cuts it.
std::string to_string(const Layout& layout);
/// Reads what to_string() wrote; DataError if it is anything else.
Layout parse_layout(std::string_view text);

}  // namespace orthant
