// Every plan of redistribute() is carried out by simulated ranks: values, bytes, gradients by the dual law, and planted
// faults that have to be caught.
#include "mesh/redistribute.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "base/errors.h"
#include "tests/mesh/simulated_ranks.h"

namespace orthant {
namespace {

constexpr int64_t kBytes = 4;

struct Case {
  Mesh mesh;
  Layout from, to;
  std::vector<int64_t> shape;
};

/// `ample`: every extent is at least the number of ranks, so that no shard is empty.
Case random_case(Random& random, bool ample = false) {
  Case c{.mesh = random_mesh(random), .from = {}, .to = {}, .shape = {}};
  while (ample && c.mesh.size() > 24) c.mesh = random_mesh(random);
  const int dims = random.below(ample ? 3 : 4);
  int64_t budget = 20000 / c.mesh.size();
  for (int dim = 0; dim < dims; ++dim) {
    const int64_t extent = ample ? c.mesh.size() + random.below(4) : random.below(14);
    c.shape.push_back(ample ? extent : std::min(extent, std::max<int64_t>(budget, 1)));
    budget /= std::max<int64_t>(c.shape.back(), 1);
  }
  c.from = random_layout(random, c.mesh, dims);
  c.to = random_layout(random, c.mesh, dims);
  return c;
}

std::string text(const Case& c, const std::vector<Collective>& plan = {}) {
  std::string out = to_string(c.mesh) + " " + to_string(c.from) + " => " + to_string(c.to) + " shape";
  for (int64_t extent : c.shape) out += " " + std::to_string(extent);
  for (const Collective& step : plan) out += "\n  " + to_string(step);
  return out;
}

/// The plan carried out leaves `to`; false where a step cannot be carried out.
bool works(const Case& c, const std::vector<Collective>& plan, const Array& tensor, uint64_t seed) {
  Random random(seed);
  Ranks ranks(c.mesh, c.from, tensor, random);
  try {
    for (const Collective& step : plan) ranks.carry_out(step);
  } catch (const std::exception&) {
    return false;
  }
  return ranks.hold(c.to, tensor);
}

std::vector<CollectiveKind> kinds(const std::vector<Collective>& plan) {
  std::vector<CollectiveKind> out;
  for (const Collective& step : plan) out.push_back(step.kind);
  return out;
}

TEST(Redistribute, EveryStepLeavesItsLayoutAndSendsItsBytes) {
  Random random(11);
  for (int round = 0; round < 2500; ++round) {
    const Case c = random_case(random);
    const std::vector<Collective> plan = redistribute(c.mesh, c.from, c.to, c.shape, kBytes);
    const Array tensor = random_array(random, c.shape);
    Ranks ranks(c.mesh, c.from, tensor, random);
    Layout before = c.from;
    // Steps do not name axes of size 1; the layouts between do not either.
    for (const Collective& step : plan) {
      ASSERT_GT(c.mesh.axis_size(step.axis), 1);
      const auto is_single = [&](const auto& axis) { return c.mesh.axis_size(axis) == 1; };
      for (auto& cuts : before.split) std::erase_if(cuts, is_single);
      std::fill(ranks.sent.begin(), ranks.sent.end(), 0);
      ranks.carry_out(step);
      ASSERT_TRUE(ranks.hold(step.after, tensor)) << text(c, plan);
      int64_t busiest = 0;
      for (int rank = 0; rank < c.mesh.size(); ++rank) {
        const int64_t bytes = bytes_sent(c.mesh, step, before, c.shape, kBytes, rank);
        ASSERT_EQ(bytes, kBytes * ranks.sent[static_cast<size_t>(rank)]) << text(c, plan) << "\nrank " << rank;
        busiest = std::max(busiest, bytes);
      }
      ASSERT_EQ(busiest, busiest_bytes(c.mesh, step, before, c.shape, kBytes)) << text(c, plan);
      ASSERT_TRUE(communicates(step.kind) || busiest == 0);
      before = step.after;
    }
    ASSERT_TRUE(ranks.hold(c.to, tensor)) << text(c, plan);
    ASSERT_EQ(plan, redistribute(c.mesh, c.from, c.to, c.shape, kBytes));
  }
}

TEST(Redistribute, LongAxesAreCountedAtTheirBusiestRank) {
  Random random(12);
  for (int round = 0; round < 400; ++round) {
    const Mesh mesh({{"a", 2 + random.below(40)}, {"b", 1 + random.below(3)}});
    const std::vector<int64_t> shape = {random.below(130), random.below(130)};
    const Layout split = random.below(2) == 0 ? parse_layout("[S(b, a), -]") : parse_layout("[S(a), S(b)]");
    for (const char* target : {"[-, S(a)]", "[-, -]", "[S(b), -]", "[S(b), -] R(a)"}) {
      Layout before = split;
      for (const Collective& step : redistribute(mesh, split, parse_layout(target), shape, kBytes)) {
        int64_t busiest = 0;
        for (int rank = 0; rank < mesh.size(); ++rank)
          busiest = std::max(busiest, bytes_sent(mesh, step, before, shape, kBytes, rank));
        ASSERT_EQ(busiest, busiest_bytes(mesh, step, before, shape, kBytes)) << to_string(mesh) << to_string(step);
        before = step.after;
      }
    }
  }
}

TEST(Redistribute, RingKindsThatKeepTheLayoutSendTheirBytes) {
  Random random(13);
  for (int round = 0; round < 300; ++round) {
    const Case c = random_case(random);
    const Array tensor = random_array(random, c.shape);
    for (const CollectiveKind kind : {CollectiveKind::broadcast, CollectiveKind::reduce, CollectiveKind::shift}) {
      const Collective step = {.kind = kind, .axis = c.mesh.axes[0].name, .after = c.to};
      // Over an axis that does not split, where all members hold arrays of one shape.
      if (placement(c.from, step.axis).what == Placing::S) continue;
      Ranks ranks(c.mesh, c.from, tensor, random);
      ranks.carry_out(step);
      for (int rank = 0; rank < c.mesh.size(); ++rank)
        ASSERT_EQ(bytes_sent(c.mesh, step, c.from, c.shape, kBytes, rank),
                  kBytes * ranks.sent[static_cast<size_t>(rank)]);
    }
  }
}

int64_t cost(const Case& c, const std::vector<Collective>& plan) {
  int64_t bytes = 0;
  Layout before = c.from;
  for (const Collective& step : plan) {
    bytes += busiest_bytes(c.mesh, step, before, c.shape, kBytes);
    before = step.after;
  }
  return bytes;
}

TEST(Redistribute, IsNeverDearerThanByWayOfTheWholeTensor) {
  Random random(14);
  int cheaper = 0;
  for (int round = 0; round < 2000; ++round) {
    Case c = random_case(random, true);
    // Without axes of size 1, so that the layouts between are layouts of the case.
    for (Axis& axis : c.mesh.axes) axis.size = std::max(axis.size, 2);
    const Layout middle = whole(static_cast<int>(c.shape.size()));
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
  std::vector<Layout> out = {whole(dims)};
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

/// The layout without the axis, if that is one step away: nothing, where another axis cuts inside of it.
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

/// The dearest rank's bytes of the single-axis move a -> b; -1 where there is no such move.
int64_t move_cost(const Mesh& mesh, const Layout& a, const Layout& b, const std::vector<int64_t>& shape) {
  using enum CollectiveKind;
  for (const Axis& axis : mesh.axes) {
    const Placement p = placement(a, axis.name), q = placement(b, axis.name);
    if (p == q || without(a, axis.name).empty() || without(a, axis.name) != without(b, axis.name)) continue;
    const bool from_split = p.what == Placing::S, to_split = q.what == Placing::S;
    if (from_split && to_split && p.dim == q.dim) continue;
    Collective step = {.kind = relabel, .axis = axis.name, .from_dim = p.dim, .to_dim = q.dim, .after = b};
    if (from_split) step.kind = to_split ? all_to_all : q.what == Placing::P ? pad : all_gather;
    if (p.what == Placing::P) step.kind = to_split ? reduce_scatter : all_reduce;
    int64_t busiest = 0;
    if (communicates(step.kind))
      for (int rank = 0; rank < mesh.size(); ++rank)
        busiest = std::max(busiest, bytes_sent(mesh, step, a, shape, kBytes, rank));
    return busiest;
  }
  return -1;
}

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
    // A value may become partial only where the target is; an axis may move only if it has to, or one outside it has.
    const auto stays = [&](const std::string& axis) {
      const Placement p = placement(layouts[from], axis), q = placement(to, axis);
      if (p != q || p.what != Placing::S) return p == q;
      const auto &a = layouts[from].split[static_cast<size_t>(p.dim)], &b = to.split[static_cast<size_t>(p.dim)];
      return std::equal(a.begin(), a.begin() + p.depth, b.begin());
    };
    const auto allowed = [&](size_t a, size_t b) {
      return std::all_of(mesh.axes.begin(), mesh.axes.end(), [&](const Axis& axis) {
        const Placement p = placement(layouts[a], axis.name), q = placement(layouts[b], axis.name);
        if (p == q) return true;
        if (stays(axis.name)) return false;
        return p.what == Placing::P || q.what != Placing::P || placement(to, axis.name).what == Placing::P;
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

/// <values, gradients> of one tensor: copies along I count once, everything else adds up over the ranks. For a value in
/// a layout and a gradient in its dual this is the inner product of the two tensors, whatever the summands are.
int64_t paired(const Mesh& mesh, const Layout& layout, Ranks& values, Ranks& gradients) {
  int64_t sum = 0;
  for (int rank = 0; rank < mesh.size(); ++rank) {
    const bool copy = std::any_of(mesh.axes.begin(), mesh.axes.end(), [&](const Axis& axis) {
      return placement(layout, axis.name).what == Placing::I && mesh.coord(rank, axis.name) != 0;
    });
    if (copy) continue;
    const Array& a = values.local(rank);
    const Array& b = gradients.local(rank);
    if (a.shape != b.shape) throw std::runtime_error("gradient of another shape");
    for (size_t i = 0; i < a.data.size(); ++i) sum += a.data[i] * b.data[i];
  }
  return sum;
}

/// Whether <move(x), y> = <x, back(y)> with back = redistribute(gradient(to) -> gradient(from)).
bool is_adjoint(const Case& c, Layout (*gradient)(const Layout&), Random& random) {
  const Array x = random_array(random, c.shape);
  const Array y = random_array(random, c.shape);
  Ranks values(c.mesh, c.from, x, random);
  Ranks gradients(c.mesh, gradient(c.to), y, random);
  Ranks moved = values;
  Ranks back = gradients;
  for (const Collective& step : redistribute(c.mesh, c.from, c.to, c.shape, kBytes)) moved.carry_out(step);
  for (const Collective& step : redistribute(c.mesh, gradient(c.to), gradient(c.from), c.shape, kBytes))
    back.carry_out(step);
  return paired(c.mesh, c.to, moved, gradients) == paired(c.mesh, c.from, values, back);
}

TEST(DualLaw, TheBackwardIsTheAdjoint) {
  Random random(15);
  for (int round = 0; round < 2000; ++round) {
    const Case c = random_case(random);
    ASSERT_EQ(dual(dual(c.from)), c.from);
    ASSERT_TRUE(is_adjoint(c, dual, random)) << text(c);
  }
}

TEST(DualLaw, WithoutTheSwapOfPAndRItFails) {
  Random random(16);
  int tried = 0, failed = 0;
  for (int round = 0; round < 1000; ++round) {
    const Case c = random_case(random, true);
    const auto has = [&](const std::vector<std::string>& axes) {
      return std::any_of(axes.begin(), axes.end(), [&](const auto& axis) { return c.mesh.axis_size(axis) > 1; });
    };
    // A case whose value is a copy or a sum on one side only: the pairing of the two sides cannot agree by symmetry.
    if ((has(c.from.partial) || has(c.from.replicated)) == (has(c.to.partial) || has(c.to.replicated))) continue;
    ++tried;
    failed += is_adjoint(c, [](const Layout& layout) { return layout; }, random) ? 0 : 1;
  }
  EXPECT_GT(tried, 200);
  EXPECT_EQ(failed, tried);
}

struct Named {
  const char* what;
  const char* from;
  const char* to;
  std::vector<CollectiveKind> forward, backward;
};

TEST(Redistribute, DerivesThePublishedCommunication) {
  using enum CollectiveKind;
  const Mesh mesh({{"tensor", 4}, {"ulysses", 2}, {"data", 3}});
  const std::vector<int64_t> shape = {24, 48};
  const std::vector<Named> table = {
      {"Megatron f", "[-, -]", "[-, -] R(tensor)", {relabel}, {all_reduce}},
      {"Megatron g", "[-, -] P(tensor)", "[-, -]", {all_reduce}, {relabel}},
      {"sequence parallelism, in", "[S(tensor), -]", "[-, -] R(tensor)", {all_gather}, {reduce_scatter}},
      {"sequence parallelism, out", "[-, -] P(tensor)", "[S(tensor), -]", {reduce_scatter}, {all_gather}},
      {"gathered output", "[-, S(tensor)]", "[-, -]", {all_gather}, {slice}},
      {"data-parallel weight", "[-, -]", "[-, -] R(data)", {relabel}, {all_reduce}},
      {"ZeRO-3 weight split on tensor, then data", "[S(tensor, data), -]", "[S(tensor), -] R(data)", {all_gather},
       {reduce_scatter}},
      {"Ulysses", "[S(ulysses), -]", "[-, S(ulysses)]", {all_to_all}, {all_to_all}},
      {"2.5-D weight gradient", "[S(tensor), -] P(data)", "[S(tensor, data), -]", {reduce_scatter}, {all_gather}},
      {"vocabulary-parallel embedding", "[-, -] P(tensor)", "[-, -] R(tensor)", {all_reduce}, {all_reduce}},
      {"nothing to do", "[S(tensor), -] P(data)", "[S(tensor), -] P(data)", {}, {}},
  };
  Random random(17);
  for (const Named& row : table) {
    const Case c = {mesh, parse_layout(row.from), parse_layout(row.to), shape};
    const auto forward = redistribute(mesh, c.from, c.to, shape, kBytes);
    EXPECT_EQ(kinds(forward), row.forward) << row.what << text(c, forward);
    const auto backward = redistribute(mesh, dual(c.to), dual(c.from), shape, kBytes);
    EXPECT_EQ(kinds(backward), row.backward) << row.what << text(c, backward);
    EXPECT_TRUE(is_adjoint(c, dual, random)) << row.what;
  }
  const Layout seq = parse_layout("[S(ulysses), -]");
  const auto ulysses = redistribute(mesh, seq, parse_layout("[-, S(ulysses)]"), shape, kBytes);
  // (U - 1) / U of the local shard leaves the rank.
  EXPECT_EQ(bytes_sent(mesh, ulysses.at(0), seq, shape, kBytes, 0), kBytes * 12 * 48 / 2);
}

TEST(Redistribute, ReducesBeforeItGathersAndGoesThroughOtherDimsToChangeAnOrder) {
  using enum CollectiveKind;
  const Mesh mesh({{"a", 2}, {"b", 2}});
  const std::vector<int64_t> shape = {8, 8};
  const auto plan = [&](const char* from, const char* to) {
    return kinds(redistribute(mesh, parse_layout(from), parse_layout(to), shape, kBytes));
  };
  EXPECT_EQ(plan("[S(a), -] P(b)", "[-, -]"), (std::vector{all_reduce, all_gather}));
  // [a, b] -> [b, a] on one dim: the inner axis has to leave before the outer one can.
  const auto swapped = redistribute(mesh, parse_layout("[S(a, b), -]"), parse_layout("[S(b, a), -]"), shape, kBytes);
  ASSERT_GE(swapped.size(), 3u);
  EXPECT_EQ(swapped.front().axis, "b");
  EXPECT_EQ(swapped.back().axis, "a");
  EXPECT_EQ(plan("[-, -]", "[S(a), -]"), (std::vector{slice}));
  EXPECT_EQ(plan("[S(a), -]", "[-, -] P(a)"), (std::vector{pad}));
  EXPECT_EQ(plan("[-, -]", "[-, -] P(a)"), (std::vector{keep_one}));
}

TEST(Redistribute, FaultsInAPlanAreCaught) {
  Random random(18);
  int dropped = 0, swapped = 0, misdirected = 0;
  for (int round = 0; round < 500; ++round) {
    const Case c = random_case(random, true);
    const std::vector<Collective> plan = redistribute(c.mesh, c.from, c.to, c.shape, kBytes);
    const Array tensor = random_array(random, c.shape);
    const uint64_t seed = random.next();
    ASSERT_TRUE(works(c, plan, tensor, seed)) << text(c, plan);
    for (size_t i = 0; i < plan.size(); ++i) {
      if (plan[i].kind == CollectiveKind::relabel) continue;
      std::vector<Collective> without = plan;
      without.erase(without.begin() + static_cast<int>(i));
      ASSERT_FALSE(works(c, without, tensor, seed)) << "without step " << i << text(c, plan);
      ++dropped;
      for (const Axis& axis : c.mesh.axes) {
        if (axis.name == plan[i].axis || axis.size == 1) continue;
        std::vector<Collective> wrong = plan;
        wrong[i].axis = axis.name;
        ASSERT_FALSE(works(c, wrong, tensor, seed)) << "step " << i << " over " << axis.name << text(c, plan);
        ++misdirected;
      }
      if (i + 1 == plan.size() || plan[i + 1].kind == CollectiveKind::relabel) continue;
      const auto touches = [](const Collective& step, int dim) {
        return dim >= 0 && (step.from_dim == dim || step.to_dim == dim);
      };
      if (plan[i].axis != plan[i + 1].axis && !touches(plan[i], plan[i + 1].from_dim) &&
          !touches(plan[i], plan[i + 1].to_dim))
        continue;  // independent steps may change places
      std::vector<Collective> wrong = plan;
      std::swap(wrong[i], wrong[i + 1]);
      ASSERT_FALSE(works(c, wrong, tensor, seed)) << "steps " << i << " and the next swapped" << text(c, plan);
      ++swapped;
    }
  }
  EXPECT_GT(dropped, 500);
  EXPECT_GT(misdirected, 500);
  EXPECT_GT(swapped, 50);
}

TEST(Redistribute, SixAxesInReverseOrderStayAffordable) {
  const Mesh mesh({{"a", 2}, {"b", 2}, {"c", 2}, {"d", 2}, {"e", 2}, {"f", 2}});
  const std::vector<int64_t> shape = {128, 64, 64};
  const Case c = {mesh, parse_layout("[S(a, b, c, d, e, f), -, -]"), parse_layout("[S(f, e, d, c, b, a), -, -]"),
                  shape};
  const auto plan = redistribute(mesh, c.from, c.to, shape, kBytes);
  EXPECT_FALSE(plan.empty());
  EXPECT_EQ(plan.back().after, c.to);
}

TEST(Redistribute, RefusesLayoutsThatDoNotFit) {
  const Mesh mesh({{"a", 2}});
  const std::vector<int64_t> shape = {4};
  const Layout good = parse_layout("[S(a)]");
  EXPECT_THROW(redistribute(mesh, parse_layout("[S(b)]"), good, shape, kBytes), LogicError);
  EXPECT_THROW(redistribute(mesh, parse_layout("[S(a)] P(a)"), good, shape, kBytes), LogicError);
  EXPECT_THROW(redistribute(mesh, parse_layout("[S(a), -]"), good, shape, kBytes), LogicError);
  EXPECT_THROW(redistribute(mesh, good, good, std::vector<int64_t>{-1}, kBytes), LogicError);
}

}  // namespace
}  // namespace orthant
