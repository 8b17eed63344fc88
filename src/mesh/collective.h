// Collective: one communication step, or one local relabeling, over one mesh axis, as a value. It states the layout
// afterwards and the bytes that each rank sends. The comm library carries it out; this file only describes it.
//
// Elements sent by the rank at coordinate c of an axis of n coordinates, exact also for uneven shards. Without the
// split along the axis the rank's tensor would have E elements, of which coordinate i holds part(i):
//   all_gather      E - part(c + 1)       a ring forwards all shards except the one that the next neighbor owns
//   reduce_scatter  E - part(c)           the reverse ring: a rank never sends the shard that it owns
//   all_reduce      E + (n - 2) chunk(c)  chunks of the flattened tensor: E - chunk(c) elements go to their owners,
//                                         then the sum of chunk c goes to n - 1 ranks
//   all_reduce_by_tree  E for each message of a summand, a sum or the total (sum_tree.h)
//   all_to_all      part(c) minus the part of it that coordinate c holds afterwards
//   reduce_in_chunks  E - chunk(c) elements go to the owners of their chunks, then the sum of chunk c goes to
//                     coordinate 0; for n = 2 it is a reduce
// broadcast, reduce and shift send the local tensor, except from the last coordinate (broadcast) or from coordinate 0
// (reduce). All other kinds send nothing, and so do all kinds if n = 1.
//
// Elements received:
//   all_gather        E - part(c)
//   reduce_scatter    (n - 1) part(c): every other rank sends its summand of the own shard
//   all_reduce        the number that it sends
//   all_to_all        part(c) after the step, minus the part of it that coordinate c held before
//   reduce_in_chunks  (n - 1) chunk(c), and coordinate 0 in addition E - chunk(0); for n = 2 it is a reduce
//   broadcast, shift  the tensor of the coordinate before; coordinate 0 of a broadcast receives nothing
//   reduce            (n - 1) E at coordinate 0, nothing elsewhere
#pragma once

#include <compare>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "mesh/layout.h"
#include "mesh/mesh.h"

namespace orthant {

/// Kinds with their effect on the placement S, P, R or I along the axis (see layout.h).
enum class CollectiveKind {
  all_reduce,          // P -> I or R
  all_reduce_by_tree,  // the same sum of few elements over many ranks, with few neighbors for each rank
  all_gather,          // S -> I or R
  reduce_scatter,      // P -> S
  all_to_all,          // S of one dim -> S of another
  broadcast,           // from coordinate 0 to all, as a chain; the layout does not change
  reduce,              // sum over all coordinates to coordinate 0; the layout does not change
  reduce_in_chunks,    // the same sum, with fewer elements into coordinate 0
  shift,               // every coordinate sends to the next, the last to coordinate 0; the layout does not change
  slice,               // I or R -> S, local
  pad,                 // S -> P, local: fills the shards of other coordinates with zeros
  mask_replicas,       // I or R -> P, local: coordinate 0 keeps its copy, all others hold zeros
  relabel,             // R <-> I, local: no data moves; only the meaning of the gradient changes
};

/// Name of the kind, such as "all_gather".
std::string_view name_of(CollectiveKind kind);
/// The kind with this name. Throws LogicError for any other text.
CollectiveKind collective_named(std::string_view name);
/// The sum into one coordinate with the fewest bytes into it: reduce_in_chunks, and over NCCL, which has none, reduce.
constexpr CollectiveKind root_sum(bool over_nccl) {
  return over_nccl ? CollectiveKind::reduce : CollectiveKind::reduce_in_chunks;
}
/// The sum of few elements over all ranks of a group. Up to 8 ranks, the messages of an all_reduce go directly to all
/// ranks, which takes two rounds. With more ranks, a tree needs fewer messages and has fewer neighbors.
constexpr CollectiveKind small_sum(int ranks) {
  constexpr int kDirectRanks = 8;
  return ranks <= kDirectRanks ? CollectiveKind::all_reduce : CollectiveKind::all_reduce_by_tree;
}
/// Whether the kind sends bytes. False for slice, pad, mask_replicas and relabel.
bool communicates(CollectiveKind kind);

/// One step over one axis, and the layout after it.
struct Collective {
  CollectiveKind kind;
  std::string axis;
  int from_dim = -1;  // tensor dim that the axis splits before the step, -1 for none
  int to_dim = -1;    // tensor dim that the axis splits after the step, -1 for none
  Layout after;       // layout after the step

  bool operator==(const Collective&) const = default;
};

/// Elements or bytes that one rank sends and receives.
struct Moved {
  int64_t sent = 0, received = 0;

  /// The larger of both directions, which a link that carries both at the same time needs to finish.
  int64_t larger() const { return sent > received ? sent : received; }
  Moved& operator+=(const Moved& more) {
    sent += more.sent, received += more.received;
    return *this;
  }
  friend Moved operator+(Moved a, const Moved& b) { return a += b; }
  friend Moved operator-(const Moved& a, const Moved& b) { return {a.sent - b.sent, a.received - b.received}; }
  friend Moved operator*(int64_t times, const Moved& m) { return {times * m.sent, times * m.received}; }
  auto operator<=>(const Moved&) const = default;
};

/// Messages of one kind that a rank sends and receives: calls of the collective, and bytes over all calls.
struct Messages {
  std::string what, collective, axis;
  int64_t calls = 0;
  Moved bytes = {};

  auto operator<=>(const Messages&) const = default;
};

/// Text form: "all_to_all over ulysses, dim 0 -> 1: [-, S(ulysses)]".
std::string to_string(const Collective& collective);

/// Bytes that the rank sends and receives, by the formulas at the top of this file. `before` is the layout before the
/// step. bytes_sent() is the first half.
Moved bytes_moved(const Mesh& mesh, const Collective& collective, const Layout& before,
                  std::span<const int64_t> global_shape, int64_t element_bytes, int rank);
int64_t bytes_sent(const Mesh& mesh, const Collective& collective, const Layout& before,
                   std::span<const int64_t> global_shape, int64_t element_bytes, int rank);

/// Elements that the rank at coordinate `coord` sends. `extents` is the local shape that the tensor would have without
/// the axis' split of from_dim.
int64_t elements_sent(CollectiveKind kind, int axis_size, int coord, std::span<const int64_t> extents,
                      int from_dim = 0, int to_dim = 0);
/// Elements that it sends and receives.
Moved elements_moved(CollectiveKind kind, int axis_size, int coord, std::span<const int64_t> extents, int from_dim = 0,
                     int to_dim = 0);
/// Maximum of elements_sent() over all coordinates of the axis.
int64_t max_elements_sent(CollectiveKind kind, int axis_size, std::span<const int64_t> extents, int from_dim = 0,
                          int to_dim = 0);

}  // namespace orthant
