// Dijkstra's algorithm over the placements of those axes that have to move. A node is the placement of these axes. An
// edge is one collective over one axis; its length is the number of elements sent plus the fixed cost of a step.
#include "mesh/redistribute.h"

#include <algorithm>
#include <array>
#include <queue>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>

#include "base/errors.h"

namespace orthant {
namespace {

/// An axis whose placement must change, or that splits a dim inside an axis whose placement must change.
struct Mover {
  std::string name;
  int size;
  AxisPlacementKind fallback_kind;  // R or I: its placement while it is neither S nor P
  bool to_partial;  // its final placement is P
};

constexpr size_t kMaxMovers = 16;

/// Placement of one mover: kReplicated (I or R), kPartial, or a split of dim `placement_code - kSplit`. `depth` counts
/// the movers that split the same dim outside it.
struct Where {
  uint8_t placement_code = 0;
  uint8_t depth = 0;

  bool operator==(const Where&) const = default;
};
constexpr uint8_t kReplicated = 0, kPartial = 1, kSplit = 2;

struct State {
  std::array<Where, kMaxMovers> movers{};

  bool operator==(const State&) const = default;
};

struct Hash {
  size_t operator()(const State& state) const {
    return std::hash<std::string_view>()({reinterpret_cast<const char*>(&state), sizeof state});
  }
};

struct Move {
  CollectiveKind kind;
  int mover = -1;
  int from_dim = -1;
  int to_dim = -1;
};

struct Node {
  State state;
  int64_t elements;  // cost of the path so far
  int steps;
  int parent;
  Move move;
  bool done = false;
};

Layout without_single_axes(const Mesh& mesh, Layout layout) {
  const auto drop = [&](std::vector<std::string>& axes) {
    std::erase_if(axes, [&](const std::string& axis) { return mesh.axis_size(axis) == 1; });
  };
  for (auto& axes : layout.split) drop(axes);
  drop(layout.partial);
  drop(layout.replicated);
  return layout;
}

/// Number of leading axes that both lists have in common. These axes need not move.
size_t common_prefix(const std::vector<std::string>& a, const std::vector<std::string>& b) {
  return static_cast<size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
}

class Search {
 public:
  Search(const Mesh& mesh, const Layout& from, const Layout& to, std::span<const int64_t> shape, int64_t element_bytes)
      : step_elements_(kStepBytes / element_bytes) {
    for (size_t dim = 0; dim < shape.size(); ++dim) {
      const size_t kept = common_prefix(from.split[dim], to.split[dim]);
      int64_t extent = shape[dim];
      for (size_t i = 0; i < kept; ++i) extent = shard(extent, mesh.axis_size(from.split[dim][i]), 0).size();
      extents_.push_back(extent);
      kept_.push_back(static_cast<int>(kept));
    }
    for (const Axis& axis : mesh.axes) {
      const AxisPlacement a = axis_placement(from, axis.name);
      const AxisPlacement b = axis_placement(to, axis.name);
      const bool is_unchanged =
          a == b && (a.kind != AxisPlacementKind::S || a.depth < kept_[static_cast<size_t>(a.dim)]);
      if (is_unchanged) continue;
      const bool target_is_replicated = b.kind == AxisPlacementKind::R || b.kind == AxisPlacementKind::I;
      const AxisPlacementKind fallback = a.kind == AxisPlacementKind::R ? AxisPlacementKind::R : AxisPlacementKind::I;
      movers_.push_back(
          {axis.name, axis.size, target_is_replicated ? b.kind : fallback, b.kind == AxisPlacementKind::P});
    }
    ORTHANT_CHECK(shape.size() < 200, shape.size());
    ORTHANT_CHECK(movers_.size() <= kMaxMovers, movers_.size());
    start_ = state_of(from);
    goal_ = state_of(to);
  }

  const std::vector<Mover>& movers() const { return movers_; }

  std::vector<Move> path() {
    visit(start_, 0, 0, -1, {});
    while (!queue_.empty()) {
      const int at = std::get<2>(queue_.top());
      queue_.pop();
      Node& node = nodes_[static_cast<size_t>(at)];
      if (node.done) continue;
      node.done = true;
      if (node.state == goal_) return moves_to(at);
      expand(at);
    }
    throw LogicError("redistribute: no path between two layouts");
  }

 private:
  State state_of(const Layout& layout) const {
    State state;
    for (size_t i = 0; i < movers_.size(); ++i) {
      const AxisPlacement at = axis_placement(layout, movers_[i].name);
      if (at.kind == AxisPlacementKind::P) state.movers[i] = {kPartial, 0};
      if (at.kind == AxisPlacementKind::S)
        state.movers[i] = {static_cast<uint8_t>(kSplit + at.dim),
                           static_cast<uint8_t>(at.depth - kept_[static_cast<size_t>(at.dim)])};
    }
    return state;
  }

  void visit(const State& state, int64_t elements, int steps, int parent, const Move& move) {
    const auto [entry, is_new] = index_.try_emplace(state, static_cast<int>(nodes_.size()));
    const int at = entry->second;
    if (is_new) {
      nodes_.push_back({state, elements, steps, parent, move});
    } else {
      Node& node = nodes_[static_cast<size_t>(at)];
      if (std::tie(node.elements, node.steps) <= std::tie(elements, steps)) return;
      node.elements = elements;
      node.steps = steps;
      node.parent = parent;
      node.move = move;
    }
    queue_.emplace(elements, steps, at);
  }

  /// Number of movers that split each dim.
  std::vector<int> depths(const State& state) const {
    std::vector<int> out(extents_.size(), 0);
    for (const Where& where : state.movers)
      if (where.placement_code >= kSplit) ++out[static_cast<size_t>(where.placement_code - kSplit)];
    return out;
  }

  /// Visits all neighbors of a node, in a fixed order.
  void expand(int at) {
    const State state = nodes_[static_cast<size_t>(at)].state;
    const std::vector<int> depth = depths(state);
    const int dims = static_cast<int>(extents_.size());
    for (int mover = 0; mover < static_cast<int>(movers_.size()); ++mover) {
      const Where where = state.movers[static_cast<size_t>(mover)];
      const int from = where.placement_code - kSplit;  // negative unless it splits
      const bool to_partial = movers_[static_cast<size_t>(mover)].to_partial;
      if (where.placement_code == kPartial && to_partial) continue;
      if (from >= 0 && where.depth + 1 != depth[static_cast<size_t>(from)]) continue;
      using enum CollectiveKind;
      if (where.placement_code == kPartial) take(at, state, depth, {all_reduce, mover, -1, -1});
      if (from >= 0) take(at, state, depth, {all_gather, mover, from, -1});
      if (to_partial) take(at, state, depth, {from >= 0 ? pad : mask_replicas, mover, std::max(from, -1), -1});
      const CollectiveKind split = where.placement_code == kPartial ? reduce_scatter : from >= 0 ? all_to_all : slice;
      for (int dim = 0; dim < dims; ++dim)
        if (dim != from) take(at, state, depth, {split, mover, std::max(from, -1), dim});
    }
  }

  void take(int at, State state, const std::vector<int>& depth, const Move& move) {
    Where& where = state.movers[static_cast<size_t>(move.mover)];
    const bool partial = move.kind == CollectiveKind::pad || move.kind == CollectiveKind::mask_replicas;
    where = {partial ? kPartial : kReplicated, 0};
    int64_t elements = 0;
    if (communicates(move.kind))
      elements = step_elements_ + max_elements_sent(move.kind, movers_[static_cast<size_t>(move.mover)].size,
                                                    local_extents(state), move.from_dim, move.to_dim);
    if (move.to_dim >= 0)
      where = {static_cast<uint8_t>(kSplit + move.to_dim),
               static_cast<uint8_t>(depth[static_cast<size_t>(move.to_dim)])};
    const Node& node = nodes_[static_cast<size_t>(at)];
    visit(state, node.elements + elements, node.steps + 1, at, move);
  }

  /// Local extents at coordinate 0 of every axis, which are the largest of any rank. They do not depend on the order in
  /// which axes split a dim: rounding up after two divisions equals rounding up after one division by the product.
  const std::vector<int64_t>& local_extents(const State& state) {
    scratch_ = extents_;
    for (size_t i = 0; i < movers_.size(); ++i) {
      if (state.movers[i].placement_code < kSplit) continue;
      int64_t& extent = scratch_[static_cast<size_t>(state.movers[i].placement_code - kSplit)];
      extent = (extent + movers_[i].size - 1) / movers_[i].size;
    }
    return scratch_;
  }

  std::vector<Move> moves_to(int at) const {
    std::vector<Move> out;
    for (; nodes_[static_cast<size_t>(at)].parent >= 0; at = nodes_[static_cast<size_t>(at)].parent)
      out.push_back(nodes_[static_cast<size_t>(at)].move);
    std::reverse(out.begin(), out.end());
    return out;
  }

  std::vector<Mover> movers_;
  int64_t step_elements_;
  std::vector<int64_t> extents_;  // local extents at coordinate 0, split only by the axes that stay
  std::vector<int> kept_;         // by dim: number of leading axes that stay
  State start_, goal_;
  std::vector<Node> nodes_;
  std::vector<int64_t> scratch_;
  std::unordered_map<State, int, Hash> index_;
  using Entry = std::tuple<int64_t, int, int>;  // cost in elements, steps, index of the node
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue_;
};

Layout moved(Layout layout, const Move& move, const Mover& mover) {
  std::erase(layout.partial, mover.name);
  std::erase(layout.replicated, mover.name);
  if (move.from_dim >= 0) layout.split[static_cast<size_t>(move.from_dim)].pop_back();
  if (move.to_dim >= 0) {
    layout.split[static_cast<size_t>(move.to_dim)].push_back(mover.name);
  } else if (move.kind == CollectiveKind::pad || move.kind == CollectiveKind::mask_replicas) {
    layout.partial.push_back(mover.name);
  } else if (mover.fallback_kind == AxisPlacementKind::R) {
    layout.replicated.push_back(mover.name);
  }
  return layout;
}

}  // namespace

std::vector<Collective> redistribute(const Mesh& mesh, const Layout& from, const Layout& to,
                                     std::span<const int64_t> global_shape, int64_t element_bytes) {
  const int dims = static_cast<int>(global_shape.size());
  ORTHANT_CHECK(element_bytes > 0, element_bytes);
  for (const int64_t extent : global_shape) ORTHANT_CHECK(extent >= 0, extent);
  check_layout(mesh, from, dims);
  check_layout(mesh, to, dims);
  Layout at = without_single_axes(mesh, from);
  const Layout goal = without_single_axes(mesh, to);
  std::vector<Collective> out;
  for (const Axis& axis : mesh.axes) {
    const AxisPlacementKind a = axis_placement(at, axis.name).kind;
    const AxisPlacementKind b = axis_placement(goal, axis.name).kind;
    const bool both_unsharded = (a == AxisPlacementKind::R || a == AxisPlacementKind::I) &&
                            (b == AxisPlacementKind::R || b == AxisPlacementKind::I);
    if (a == b || !both_unsharded) continue;
    std::erase(at.replicated, axis.name);
    if (b == AxisPlacementKind::R) at.replicated.push_back(axis.name);
    out.push_back({.kind = CollectiveKind::relabel, .axis = axis.name, .after = at});
  }
  Search search(mesh, at, goal, global_shape, element_bytes);
  for (const Move& move : search.path()) {
    const Mover& mover = search.movers()[static_cast<size_t>(move.mover)];
    at = moved(std::move(at), move, mover);
    out.push_back({move.kind, mover.name, move.from_dim, move.to_dim, at});
  }
  return out;
}

}  // namespace orthant
