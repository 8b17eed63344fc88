// redistribute() finds the cheapest path, compared with the detour over the unsharded tensor and with an exhaustive
// search.
#include "mesh/redistribute.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "tests/mesh/cases.h"

namespace orthant::redistribute_cost_test {
namespace {

int64_t cost(const Case& c, const std::vector<Collective>& plan) {
  int64_t bytes = 0;
  Layout before = c.from;
  for (const Collective& step : plan) {
    bytes += max_bytes_sent(c.mesh, step, before, c.shape) + (communicates(step.kind) ? kStepBytes : 0);
    before = step.after;
  }
  return bytes;
}

TEST(Redistribute, CostsAtMostTheDetourOverTheUnshardedTensor) {
  Random random(14);
  int cheaper = 0;
  for (int round = 0; round < 2000; ++round) {
    Case c = random_case(random, true);
    // No axes of size 1, because the intermediate layouts of a plan omit them.
    for (Axis& axis : c.mesh.axes) axis.size = std::max(axis.size, 2);
    const Layout middle = unsharded_layout(static_cast<int>(c.shape.size()));
    Case first = c, second = c;
    first.to = second.from = middle;
    const int64_t direct = cost(c, redistribute(c.mesh, c.from, c.to, c.shape, kBytes));
    const int64_t detour = cost(first, redistribute(c.mesh, c.from, middle, c.shape, kBytes)) +
                           cost(second, redistribute(c.mesh, middle, c.to, c.shape, kBytes));
    ASSERT_LE(direct, detour) << text(c);
    cheaper += direct < detour ? 1 : 0;
  }
  EXPECT_GT(cheaper, 500);
}

/// All layouts of `dims` dims over the axes of the mesh.
std::vector<Layout> all_layouts(const Mesh& mesh, int dims) {
  std::vector<Layout> out = {unsharded_layout(dims)};
  for (const Axis& axis : mesh.axes) {
    std::vector<Layout> longer;
    for (const Layout& layout : out) {
      longer.push_back(layout);
      longer.push_back(layout);
      longer.back().partial.push_back(axis.name);
      longer.push_back(layout);
      longer.back().replicated.push_back(axis.name);
      for (size_t dim = 0; dim < layout.split.size(); ++dim)
        for (size_t depth = 0; depth <= layout.split[dim].size(); ++depth) {
          longer.push_back(layout);
          auto& cuts = longer.back().split[dim];
          cuts.insert(cuts.begin() + static_cast<int>(depth), axis.name);
        }
    }
    out = std::move(longer);
  }
  return out;
}

/// The layout without the axis, if one step can remove it. Empty if another axis splits the same dim inside this one.
std::vector<Layout> without(const Layout& layout, const std::string& axis) {
  Layout out = layout;
  std::erase(out.partial, axis);
  std::erase(out.replicated, axis);
  for (auto& cuts : out.split) {
    const auto found = std::find(cuts.begin(), cuts.end(), axis);
    if (found == cuts.end()) continue;
    if (found + 1 != cuts.end()) return {};
    cuts.pop_back();
  }
  return {out};
}

/// Cost of the single-axis move a -> b: the bytes of the busiest rank plus kStepBytes if it communicates. -1 if there
/// is no such move.
int64_t move_cost(const Mesh& mesh, const Layout& a, const Layout& b, const std::vector<int64_t>& shape) {
  using enum CollectiveKind;
  for (const Axis& axis : mesh.axes) {
    const AxisPlacement p = axis_placement(a, axis.name), q = axis_placement(b, axis.name);
    if (p == q || without(a, axis.name).empty() || without(a, axis.name) != without(b, axis.name)) continue;
    const bool from_split = p.kind == AxisPlacementKind::S, to_split = q.kind == AxisPlacementKind::S;
    if (from_split && to_split && p.dim == q.dim) continue;
    Collective step = {.kind = relabel, .axis = axis.name, .from_dim = p.dim, .to_dim = q.dim, .after = b};
    if (from_split) step.kind = to_split ? all_to_all : q.kind == AxisPlacementKind::P ? pad : all_gather;
    if (p.kind == AxisPlacementKind::P) step.kind = to_split ? reduce_scatter : all_reduce;
    int64_t busiest = 0;
    if (communicates(step.kind))
      for (int rank = 0; rank < mesh.size(); ++rank)
        busiest = std::max(busiest, bytes_sent(mesh, step, a, shape, kBytes, rank));
    return busiest + (communicates(step.kind) ? kStepBytes : 0);
  }
  return -1;
}

// The oracle is a shortest-path search over all layouts of two dims on three axes, under the same rules.
TEST(Redistribute, FindsTheCheapestPathThatAnExhaustiveSearchFinds) {
  const Mesh mesh({{"a", 2}, {"b", 3}, {"c", 2}});
  const std::vector<int64_t> shape = {7, 12};
  const std::vector<Layout> layouts = all_layouts(mesh, 2);
  const size_t n = layouts.size();
  struct Edge {
    size_t to;
    int64_t bytes;
  };
  std::vector<std::vector<Edge>> edges(n);
  for (size_t a = 0; a < n; ++a)
    for (size_t b = 0; b < n; ++b) {
      const int64_t bytes = move_cost(mesh, layouts[a], layouts[b], shape);
      if (bytes >= 0) edges[a].push_back({b, bytes});
    }
  Random random(19);
  for (int round = 0; round < 60; ++round) {
    const Layout& to = layouts[static_cast<size_t>(random.below(static_cast<int>(n)))];
    const size_t from = static_cast<size_t>(random.below(static_cast<int>(n)));
    // The rules of redistribute(): a value becomes partial only if the target is. An axis moves only if its placement
    // changes, or if an axis outside it on the same dim moves.
    const auto stays = [&](const std::string& axis) {
      const AxisPlacement p = axis_placement(layouts[from], axis), q = axis_placement(to, axis);
      if (p != q || p.kind != AxisPlacementKind::S) return p == q;
      const auto &a = layouts[from].split[static_cast<size_t>(p.dim)], &b = to.split[static_cast<size_t>(p.dim)];
      return std::equal(a.begin(), a.begin() + p.depth, b.begin());
    };
    const auto allowed = [&](size_t a, size_t b) {
      return std::all_of(mesh.axes.begin(), mesh.axes.end(), [&](const Axis& axis) {
        const AxisPlacement p = axis_placement(layouts[a], axis.name), q = axis_placement(layouts[b], axis.name);
        if (p == q) return true;
        if (stays(axis.name)) return false;
        return p.kind == AxisPlacementKind::P || q.kind != AxisPlacementKind::P ||
               axis_placement(to, axis.name).kind == AxisPlacementKind::P;
      });
    };
    std::vector<int64_t> best(n, std::numeric_limits<int64_t>::max());
    best[from] = 0;
    for (bool changed = true; changed;) {
      changed = false;
      for (size_t a = 0; a < n; ++a) {
        if (best[a] == std::numeric_limits<int64_t>::max()) continue;
        for (const Edge& edge : edges[a]) {
          if (best[a] + edge.bytes >= best[edge.to] || !allowed(a, edge.to)) continue;
          best[edge.to] = best[a] + edge.bytes;
          changed = true;
        }
      }
    }
    const Case c = {mesh, layouts[from], to, shape};
    const auto plan = redistribute(mesh, c.from, to, shape, kBytes);
    const size_t goal = static_cast<size_t>(std::find(layouts.begin(), layouts.end(), to) - layouts.begin());
    EXPECT_EQ(cost(c, plan), best[goal]) << text(c, plan);
  }
}

}  // namespace
}  // namespace orthant::redistribute_cost_test
