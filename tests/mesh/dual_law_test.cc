// The backward of redistribute(a -> b) is redistribute(dual(b) -> dual(a)). Random cases check this by inner products;
// a table checks the collectives that the literature names. Negative control: a dual that does not swap P and R.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/mesh/cases.h"

namespace orthant::dual_law_test {
namespace {

/// The sum of <value, gradient> over the ranks, where copies along I count once. For a value in a layout and a gradient
/// in its dual, this is the inner product of the two global tensors, whatever the summands are.
int64_t paired(const Mesh& mesh, const Layout& layout, Ranks& values, Ranks& gradients) {
  int64_t sum = 0;
  for (int rank = 0; rank < mesh.size(); ++rank) {
    const bool copy = std::any_of(mesh.axes.begin(), mesh.axes.end(), [&](const Axis& axis) {
      return axis_placement(layout, axis.name).kind == AxisPlacementKind::I && mesh.coord(rank, axis.name) != 0;
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

// Negative control: with the layouts themselves in place of their duals, the law fails in every case tried.
TEST(DualLaw, WithoutTheSwapOfPAndRItFails) {
  Random random(16);
  int tried = 0, failed = 0;
  for (int round = 0; round < 1000; ++round) {
    const Case c = random_case(random, true);
    const auto has = [&](const std::vector<std::string>& axes) {
      return std::any_of(axes.begin(), axes.end(), [&](const auto& axis) { return c.mesh.axis_size(axis) > 1; });
    };
    // Only cases in which exactly one side has a replicated or partial value. Otherwise the two pairings could agree by
    // symmetry.
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

TEST(DualLaw, DerivesThePublishedCommunication) {
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
  // All but 1/U of the local shard of [12, 48] leaves the rank, with U = 2 Ulysses ranks.
  EXPECT_EQ(bytes_sent(mesh, ulysses.at(0), seq, shape, kBytes, 0), kBytes * 12 * 48 / 2);
}

}  // namespace
}  // namespace orthant::dual_law_test
