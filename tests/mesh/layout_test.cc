// Layout: the shards tile the tensor, the text form is parsed back, and layouts that do not fit are refused.
#include "mesh/layout.h"

#include <gtest/gtest.h>

#include "base/errors.h"
#include "tests/mesh/simulated_ranks.h"

namespace orthant::layout_test {
namespace {

TEST(Layout, ReadsBackItsText) {
  Random random(21);
  for (int round = 0; round < 1000; ++round) {
    const Mesh mesh = random_mesh(random);
    const Layout layout = random_layout(random, mesh, random.below(4));
    EXPECT_EQ(parse_layout(to_string(layout)), layout) << to_string(layout);
  }
  EXPECT_EQ(to_string(parse_layout("[ S(data,tensor) , -] P(ring) R(ulysses)")),
            "[S(data, tensor), -] P(ring) R(ulysses)");
  EXPECT_EQ(to_string(unsharded_layout(0)), "[]");
  for (const char* text : {"", "[", "[S()]", "[S(a]", "[-] P()", "[-] Q(a)", "[-,]", "[-] R(a) P(b)", "[S(a b)]"})
    EXPECT_THROW(parse_layout(text), DataError) << text;
}

TEST(Layout, ComparesPartialAndReplicatedAxesAsSets) {
  EXPECT_EQ(parse_layout("[-] P(a, b) R(c, d)"), parse_layout("[-] P(b, a) R(d, c)"));
  EXPECT_NE(parse_layout("[S(a, b)]"), parse_layout("[S(b, a)]"));
  EXPECT_NE(parse_layout("[-] P(a)"), parse_layout("[-] R(a)"));
}

TEST(Layout, SeenAlongOneAxis) {
  const Layout layout = parse_layout("[-, S(a, b)] P(c) R(d)");
  EXPECT_EQ(axis_placement(layout, "b"), (AxisPlacement{AxisPlacementKind::S, 1, 1}));
  EXPECT_EQ(axis_placement(layout, "c").kind, AxisPlacementKind::P);
  EXPECT_EQ(axis_placement(layout, "d").kind, AxisPlacementKind::R);
  EXPECT_EQ(axis_placement(layout, "e").kind, AxisPlacementKind::I);
  EXPECT_EQ(dual(layout), parse_layout("[-, S(a, b)] P(d) R(c)"));
}

TEST(Layout, OutermostAxisSplitsFirst) {
  const Mesh mesh({{"a", 2}, {"b", 3}});
  const std::vector<int64_t> shape = {7};
  // 7 rows over a give 4 and 3. Each of these over b gives 2, 1, 1 and 1, 1, 1.
  EXPECT_EQ(local_ranges(mesh, parse_layout("[S(a, b)]"), shape, mesh.rank_at(std::vector{0, 1})),
            (std::vector<Range>{{2, 3}}));
  EXPECT_EQ(local_ranges(mesh, parse_layout("[S(a, b)]"), shape, mesh.rank_at(std::vector{1, 0})),
            (std::vector<Range>{{4, 5}}));
  // 7 rows over b give 3, 2, 2. Each of these is then split over a.
  EXPECT_EQ(local_ranges(mesh, parse_layout("[S(b, a)]"), shape, mesh.rank_at(std::vector{1, 0})),
            (std::vector<Range>{{2, 3}}));
}

TEST(Layout, ShardsTileTheTensor) {
  Random random(22);
  for (int round = 0; round < 1000; ++round) {
    const Mesh mesh = random_mesh(random);
    std::vector<int64_t> shape;
    for (int dims = random.below(4); dims > 0; --dims) shape.push_back(random.below(9));
    const Layout layout = random_layout(random, mesh, static_cast<int>(shape.size()));
    Array owners = zeros(shape);
    int copies = 1;
    for (const Axis& axis : mesh.axes)
      if (axis_placement(layout, axis.name).kind != AxisPlacementKind::S) copies *= axis.size;
    for (int rank = 0; rank < mesh.size(); ++rank) {
      const std::vector<Range> ranges = local_ranges(mesh, layout, shape, rank);
      for_each_index(local_shape(mesh, layout, shape, rank), [&](std::vector<int64_t> index) {
        for (size_t d = 0; d < index.size(); ++d) index[d] += ranges[d].begin;
        owners.at(index) += 1;
      });
    }
    for (const int64_t owner_count : owners.data) ASSERT_EQ(owner_count, copies) << to_string(layout);
  }
}

TEST(Layout, IsCheckedAgainstTheMesh) {
  const Mesh mesh({{"a", 2}, {"b", 3}});
  EXPECT_NO_THROW(check_layout(mesh, parse_layout("[S(a), -] P(b)"), 2));
  EXPECT_THROW(check_layout(mesh, parse_layout("[S(a), -] P(b)"), 1), LogicError);
  EXPECT_THROW(check_layout(mesh, parse_layout("[S(a), S(a)]"), 2), LogicError);
  EXPECT_THROW(check_layout(mesh, parse_layout("[S(a), -] R(a)"), 2), LogicError);
  EXPECT_THROW(check_layout(mesh, parse_layout("[S(c), -]"), 2), LogicError);
}

}  // namespace
}  // namespace orthant::layout_test
