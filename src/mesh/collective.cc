// Exact communication volumes of the collectives, for balanced shards that may be uneven.
#include "mesh/collective.h"

#include <algorithm>
#include <array>
#include <vector>

#include "base/errors.h"
#include "mesh/sum_tree.h"

namespace orthant {
namespace {

struct KindFacts {
  CollectiveKind kind;
  std::string_view name;
  bool communicates;
};

constexpr std::array kFacts = {
    KindFacts{CollectiveKind::all_reduce, "all_reduce", true},
    KindFacts{CollectiveKind::all_reduce_by_tree, "all_reduce_by_tree", true},
    KindFacts{CollectiveKind::all_gather, "all_gather", true},
    KindFacts{CollectiveKind::reduce_scatter, "reduce_scatter", true},
    KindFacts{CollectiveKind::all_to_all, "all_to_all", true},
    KindFacts{CollectiveKind::broadcast, "broadcast", true},
    KindFacts{CollectiveKind::reduce, "reduce", true},
    KindFacts{CollectiveKind::reduce_in_chunks, "reduce_in_chunks", true},
    KindFacts{CollectiveKind::shift, "shift", true},
    KindFacts{CollectiveKind::slice, "slice", false},
    KindFacts{CollectiveKind::pad, "pad", false},
    KindFacts{CollectiveKind::mask_replicas, "keep_one", false},
    KindFacts{CollectiveKind::relabel, "relabel", false},
};

const KindFacts& facts_of(CollectiveKind kind) {
  for (const KindFacts& facts : kFacts)
    if (facts.kind == kind) return facts;
  throw LogicError(fmt::format("no collective of kind {}", static_cast<int>(kind)));
}

/// The layout without the collective's axis on from_dim. The axis must be the innermost one that splits this dim.
Layout without_split(Layout layout, const Collective& collective) {
  if (collective.from_dim < 0) return layout;
  auto& split_axes = layout.split.at(static_cast<size_t>(collective.from_dim));
  ORTHANT_CHECK(!split_axes.empty() && split_axes.back() == collective.axis, to_string(collective), to_string(layout));
  split_axes.pop_back();
  return layout;
}

void check_dim(std::span<const int64_t> shape, int dim) {
  ORTHANT_CHECK(dim >= 0 && dim < static_cast<int>(shape.size()), dim, shape.size());
}

}  // namespace

std::string_view name_of(CollectiveKind kind) { return facts_of(kind).name; }

CollectiveKind collective_named(std::string_view name) {
  for (const KindFacts& facts : kFacts) {
    if (facts.name == name) return facts.kind;
  }
  throw LogicError(fmt::format("no collective is named {}", name));
}

bool communicates(CollectiveKind kind) { return facts_of(kind).communicates; }

std::string to_string(const Collective& collective) {
  std::string out = fmt::format("{} over {}", name_of(collective.kind), collective.axis);
  const bool from = collective.from_dim >= 0;
  const bool to = collective.to_dim >= 0;
  if (from && to) out += fmt::format(", dim {} -> {}", collective.from_dim, collective.to_dim);
  if (from != to) out += fmt::format(", dim {}", from ? collective.from_dim : collective.to_dim);
  return out + ": " + to_string(collective.after);
}

Moved elements_moved(CollectiveKind kind, int axis_size, int coord, std::span<const int64_t> extents, int from_dim,
                     int to_dim) {
  if (axis_size == 1 || !communicates(kind)) return {};
  const int64_t elements = volume(extents);
  if (elements == 0) return {};
  // Elements that coordinate c holds if the axis splits only `dim`.
  const auto part = [&](int dim, int c) {
    check_dim(extents, dim);
    const int64_t extent = extents[static_cast<size_t>(dim)];
    return elements / extent * shard(extent, axis_size, (c + axis_size) % axis_size).size();
  };
  const auto chunk = [&](int c) { return shard(elements, axis_size, c % axis_size).size(); };
  const int64_t others = axis_size - 1;
  switch (kind) {
    case CollectiveKind::all_gather:
      return {elements - part(from_dim, coord + 1), elements - part(from_dim, coord)};
    case CollectiveKind::reduce_scatter:
      return {elements - part(to_dim, coord), others * part(to_dim, coord)};
    case CollectiveKind::all_reduce: {
      const int64_t both = elements + (axis_size - 2) * chunk(coord);
      return {both, both};
    }
    case CollectiveKind::all_reduce_by_tree: {
      const TreeNeighbors place = tree_neighbors(axis_size, coord);
      return {elements * place.tensors_sent(), elements * place.tensors_received()};
    }
    case CollectiveKind::all_to_all: {
      check_dim(extents, from_dim);
      check_dim(extents, to_dim);
      // The part that coordinate c holds before, without its share of `dim`, which it keeps.
      const auto without_own = [&](int64_t held, int dim) {
        const int64_t extent = extents[static_cast<size_t>(dim)];
        return held / extent * (extent - shard(extent, axis_size, coord).size());
      };
      return {without_own(part(from_dim, coord), to_dim), without_own(part(to_dim, coord), from_dim)};
    }
    case CollectiveKind::broadcast:
      return {coord + 1 < axis_size ? elements : 0, coord > 0 ? elements : 0};
    case CollectiveKind::reduce_in_chunks:
      if (axis_size > 2) {
        return {coord > 0 ? elements : elements - chunk(0),
                others * chunk(coord) + (coord > 0 ? 0 : elements - chunk(0))};
      }
      [[fallthrough]];
    case CollectiveKind::reduce:
      return {coord > 0 ? elements : 0, coord > 0 ? 0 : others * elements};
    default:
      // shift: a coordinate sends its own shard if the axis splits from_dim, otherwise the whole local tensor.
      if (from_dim < 0) return {elements, elements};
      return {part(from_dim, coord), part(from_dim, coord - 1)};
  }
}

int64_t elements_sent(CollectiveKind kind, int axis_size, int coord, std::span<const int64_t> extents, int from_dim,
                      int to_dim) {
  return elements_moved(kind, axis_size, coord, extents, from_dim, to_dim).sent;
}

int64_t max_elements_sent(CollectiveKind kind, int axis_size, std::span<const int64_t> extents, int from_dim,
                          int to_dim) {
  const auto at = [&](int64_t coord) {
    return elements_sent(kind, axis_size, static_cast<int>(coord), extents, from_dim, to_dim);
  };
  // Shards along an axis have at most two sizes, the larger ones first. So shard 0 is a largest one, and the last
  // shard is a smallest one.
  if (axis_size == 1 || !communicates(kind)) return 0;
  if (kind == CollectiveKind::reduce_scatter || kind == CollectiveKind::reduce ||
      kind == CollectiveKind::reduce_in_chunks) {
    return at(axis_size - 1);
  }
  if (kind == CollectiveKind::all_gather) return at(axis_size - 2);
  if (kind == CollectiveKind::all_reduce_by_tree) {
    int64_t most = 0;
    for (int coord = 0; coord < axis_size; ++coord) most = std::max(most, at(coord));
    return most;
  }
  if (kind != CollectiveKind::all_to_all) return at(0);
  // all_to_all: the busiest coordinate has a large shard of from_dim and a small shard of to_dim. Candidates are the
  // last coordinate with a large shard of from_dim and the first one with a small shard of to_dim.
  check_dim(extents, from_dim);
  check_dim(extents, to_dim);
  const int64_t last_large = std::max<int64_t>(extents[static_cast<size_t>(from_dim)] % axis_size - 1, 0);
  return std::max({at(last_large), at(extents[static_cast<size_t>(to_dim)] % axis_size), at(axis_size - 1)});
}

Moved bytes_moved(const Mesh& mesh, const Collective& collective, const Layout& before,
                  std::span<const int64_t> global_shape, int64_t element_bytes, int rank) {
  const std::vector<int64_t> extents = local_shape(mesh, without_split(before, collective), global_shape, rank);
  return element_bytes * elements_moved(collective.kind, mesh.axis_size(collective.axis),
                                        mesh.coord(rank, collective.axis), extents, collective.from_dim,
                                        collective.to_dim);
}

int64_t bytes_sent(const Mesh& mesh, const Collective& collective, const Layout& before,
                   std::span<const int64_t> global_shape, int64_t element_bytes, int rank) {
  return bytes_moved(mesh, collective, before, global_shape, element_bytes, rank).sent;
}

}  // namespace orthant
