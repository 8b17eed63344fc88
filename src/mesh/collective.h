// Collective: one step of communication (or of local relabelling) over one mesh axis, as a value: what it does to a
// layout, and how many bytes each rank sends for it. comm carries it out; nothing here does.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "mesh/layout.h"
#include "mesh/mesh.h"

namespace orthant {

enum class CollectiveKind {
  all_reduce,      // P -> I or R
  all_gather,      // S -> I or R
  reduce_scatter,  // P -> S
  all_to_all,      // S of one dim -> S of another
  broadcast,       // coordinate 0 to all, as a chain; the layout does not change
  reduce,          // the sum of all to coordinate 0, as a chain; the layout does not change
  shift,           // each to the next coordinate, the last to coordinate 0; the layout does not change
  slice,           // I or R -> S, local
  pad,             // S -> P, local: zeros where other positions hold the shard
  keep_one,        // I or R -> P, local: coordinate 0 keeps its copy, the rest hold zeros
  relabel,         // R <-> I, local: nothing moves, the gradient's meaning changes
};

/// "all_gather" and so on.
std::string_view name_of(CollectiveKind kind);
/// False for the kinds that move no bytes.
bool communicates(CollectiveKind kind);

struct Collective {
  CollectiveKind kind;
  std::string axis;
  int from_dim = -1;  // the dim that was split along the axis, -1 where none was
  int to_dim = -1;    // the dim that is split afterwards, -1 where none is
  Layout after;

  bool operator==(const Collective&) const = default;
};

/// "all_to_all over ulysses, dim 0 -> 1: [-, S(ulysses)]".
std::string to_string(const Collective& collective);

/// Bytes that the rank sends, exact for uneven shards. c is the rank's coordinate on the axis, whole the number of
/// elements of the rank's tensor without the axis' cut, part(i) those of coordinate i's shard:
///   all_gather      whole - part(c + 1): the ring passes every shard on, but the one its next neighbor owns
///   reduce_scatter  whole - part(c): its mirror, one's own shard is never sent
///   all_reduce      whole + (size - 2) chunk(c), of balanced chunks of the flat local tensor, whatever its shape: the
///                   others' chunks to their owners, and the sum of one's own to all others
///   all_to_all      part(c) minus what stays: the piece of it that belongs to c afterwards
///   broadcast       the local tensor, but 0 from the last;  reduce: 0 from coordinate 0;  shift: from all
/// Everything else, and every kind over an axis of size 1, is 0.
int64_t bytes_sent(const Mesh& mesh, const Collective& collective, const Layout& before,
                   std::span<const int64_t> global_shape, int64_t element_bytes, int rank);

/// The largest bytes_sent() of any rank, in time that does not depend on the number of ranks.
int64_t busiest_bytes(const Mesh& mesh, const Collective& collective, const Layout& before,
                      std::span<const int64_t> global_shape, int64_t element_bytes);

/// The formulas above for one rank, in elements. `extents`: the local shape without the axis' cut on from_dim.
int64_t elements_sent(CollectiveKind kind, int axis_size, int coord, std::span<const int64_t> extents,
                      int from_dim = 0, int to_dim = 0);
/// Its maximum over coordinates.
int64_t busiest_elements(CollectiveKind kind, int axis_size, std::span<const int64_t> extents, int from_dim = 0,
                         int to_dim = 0);

}  // namespace orthant
