// Mesh against its definition by loops over all coordinates; shard() against its stated properties.
#include "mesh/mesh.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "base/errors.h"
#include "tests/mesh/simulated_ranks.h"

namespace orthant::mesh_test {
namespace {

TEST(Shard, IsBalancedContiguousAndLongestFirst) {
  for (int64_t n : {0, 1, 2, 3, 7, 12, 1000, 1003}) {
    for (int parts = 1; parts <= 9; ++parts) {
      int64_t at = 0;
      for (int i = 0; i < parts; ++i) {
        const Range range = shard(n, parts, i);
        EXPECT_EQ(range.begin, at);
        EXPECT_EQ(range.size(), n / parts + (i < n % parts ? 1 : 0));
        at = range.end;
      }
      EXPECT_EQ(at, n);
    }
  }
  EXPECT_THROW(shard(4, 0, 0), LogicError);
  EXPECT_THROW(shard(4, 2, 2), LogicError);
  EXPECT_THROW(shard(-1, 2, 0), LogicError);
}

TEST(Mesh, FirstAxisVariesFastest) {
  const Mesh mesh({{"tensor", 2}, {"ring", 4}, {"data", 3}});
  EXPECT_EQ(mesh.size(), 24);
  EXPECT_EQ(mesh.coord(1, "tensor"), 1);
  EXPECT_EQ(mesh.coord(2, "ring"), 1);
  EXPECT_EQ(mesh.coord(8, "data"), 1);
  EXPECT_EQ(mesh.axis_size("ring"), 4);
  EXPECT_EQ(mesh.axis_size("pipeline"), 1);
  EXPECT_EQ(mesh.group(9, {"data"}), (std::vector<int>{1, 9, 17}));
  EXPECT_EQ(mesh.group(9, {"data", "tensor"}), (std::vector<int>{0, 1, 8, 9, 16, 17}));
  EXPECT_EQ(mesh.group(9, {"tensor", "data"}), mesh.group(9, {"data", "tensor"}));
  EXPECT_EQ(mesh.group(9, std::initializer_list<std::string>{}), (std::vector<int>{9}));
  EXPECT_EQ(mesh.rank_at(9, "data", 2), 17);
}

TEST(Mesh, UlyssesAndRingGroupsOfThePublishedExample) {
  const Mesh mesh({{"tensor", 2}, {"ulysses", 2}, {"ring", 2}, {"data", 2}});
  EXPECT_EQ(mesh.group(0, {"ulysses"}), (std::vector<int>{0, 2}));
  EXPECT_EQ(mesh.group(8, {"ring"}), (std::vector<int>{8, 12}));
  EXPECT_EQ(mesh.group(1, {"ulysses", "ring", "data"}), (std::vector<int>{1, 3, 5, 7, 9, 11, 13, 15}));
}

TEST(Mesh, GroupsPartitionTheRanks) {
  Random random(1);
  for (int round = 0; round < 500; ++round) {
    const Mesh mesh = random_mesh(random);
    std::vector<std::string> among;
    for (const Axis& axis : mesh.axes)
      if (random.below(2) == 1) among.push_back(axis.name);
    std::multiset<int> seen;
    for (int rank = 0; rank < mesh.size(); ++rank) {
      EXPECT_EQ(mesh.rank_at(mesh.coords(rank)), rank);
      const std::vector<int> group = mesh.group(rank, among);
      ASSERT_EQ(static_cast<int>(group.size()), mesh.group_size(among));
      EXPECT_EQ(group[static_cast<size_t>(mesh.group_index(rank, among))], rank);
      EXPECT_TRUE(std::is_sorted(group.begin(), group.end()));
      for (int member : group) {
        EXPECT_EQ(mesh.group(member, among), group);
        for (const Axis& axis : mesh.axes) {
          if (std::find(among.begin(), among.end(), axis.name) != among.end()) continue;
          EXPECT_EQ(mesh.coord(member, axis.name), mesh.coord(rank, axis.name));
        }
      }
      if (group.front() == rank) seen.insert(group.begin(), group.end());
    }
    EXPECT_EQ(static_cast<int>(seen.size()), mesh.size());
    EXPECT_EQ(static_cast<int>(std::set<int>(seen.begin(), seen.end()).size()), mesh.size());
  }
}

TEST(Mesh, RefusesInvalidMeshes) {
  EXPECT_THROW(Mesh({{"data", 0}}), LogicError);
  EXPECT_THROW(Mesh({{"data", 2}, {"data", 2}}), LogicError);
  EXPECT_THROW(Mesh({{"", 2}}), LogicError);
  EXPECT_THROW(Mesh({{"a b", 2}}), LogicError);
  EXPECT_THROW(Mesh({{"a", 1 << 20}, {"b", 1 << 20}}), LogicError);
  const Mesh mesh({{"data", 2}});
  EXPECT_THROW(mesh.coord(0, "dta"), LogicError);
  EXPECT_THROW(mesh.group(0, {"dta"}), LogicError);
  EXPECT_THROW(mesh.coord(2, "data"), LogicError);
  EXPECT_THROW(mesh.rank_at(std::vector<int>{2}), LogicError);
  EXPECT_EQ(to_string(Mesh()), "[]");
  EXPECT_EQ(Mesh().size(), 1);
  EXPECT_EQ(to_string(Mesh({{"tensor", 2}, {"data", 3}})), "[tensor 2, data 3]");
}

}  // namespace
}  // namespace orthant::mesh_test
