// A partition of ranks, and the positions of ranks in groups, compared with plain lists.
#include "mesh/rank_classes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

#include "base/errors.h"

namespace orthant::rank_classes_test {
namespace {

TEST(RankClasses, AreNumberedByTheirLowestRanks) {
  const RankClasses classes(std::vector{7, 7, 3, 7, 7, 3, 9});
  ASSERT_EQ(classes.count(), 3);
  EXPECT_EQ(classes.num_ranks(), 7);
  EXPECT_EQ(classes.ranges(0), (std::vector<Range>{{0, 2}, {3, 5}}));
  EXPECT_EQ(classes.ranges(1), (std::vector<Range>{{2, 3}, {5, 6}}));
  EXPECT_EQ(classes.ranges(2), (std::vector<Range>{{6, 7}}));
  const std::vector<int> want = {0, 0, 1, 0, 0, 1, 2};
  for (int rank = 0; rank < 7; ++rank) EXPECT_EQ(classes.of(rank), want[static_cast<size_t>(rank)]) << rank;
  EXPECT_EQ(classes.first_rank(1), 2);
  EXPECT_EQ(classes.num_ranks(0), 4);
  EXPECT_EQ(ranks_text(classes.ranges(0)), "0-1, 3-4");
  EXPECT_EQ(ranks_text(classes.ranges(2)), "6");
  EXPECT_THROW(classes.of(7), LogicError);
  EXPECT_THROW(classes.of(-1), LogicError);
  EXPECT_EQ(RankClasses().count(), 0);
}

TEST(RankClasses, JoinClassesWithEqualLabels) {
  const RankClasses classes(std::vector{0, 1, 2, 1, 0});
  EXPECT_EQ(classes.joined(std::vector{5, 6, 5}), RankClasses(std::vector{0, 1, 0, 1, 0}));
  EXPECT_NE(classes.joined(std::vector{5, 6, 6}), RankClasses(std::vector{0, 1, 0, 1, 0}));
  EXPECT_EQ(classes.joined(std::vector{1, 1, 1}).ranges(0), (std::vector<Range>{{0, 5}}));
  EXPECT_THROW(classes.joined(std::vector{1, 1}), LogicError);
}

TEST(GroupPositions, AreThoseOfTheMesh) {
  const Mesh mesh({{"column", 2}, {"row", 1}, {"ring", 3}, {"data", 4}});
  for (const std::vector<std::string>& axes :
       std::vector<std::vector<std::string>>{{},
                                             {"column"},
                                             {"row"},
                                             {"ring", "column"},
                                             {"data"},
                                             {"data", "column"},
                                             {"data", "ring", "column", "row"}}) {
    const GroupPositions positions(mesh, axes);
    EXPECT_EQ(positions.size(), mesh.group_size(axes));
    std::set<int> first_ranks;
    for (int rank = 0; rank < mesh.size(); ++rank) {
      EXPECT_EQ(positions.of(rank), mesh.group_index(rank, axes)) << rank;
      const int first = positions.rank_at(positions.of(rank));
      first_ranks.insert(first);
      for (const Axis& axis : mesh.axes) {
        const bool among = std::ranges::find(axes, axis.name) != axes.end();
        EXPECT_EQ(mesh.coord(first, axis.name), among ? mesh.coord(rank, axis.name) : 0) << rank << ", " << axis.name;
      }
    }
    EXPECT_EQ(static_cast<int>(first_ranks.size()), positions.size());
  }
  EXPECT_THROW(GroupPositions(mesh, std::vector<std::string>{"pipeline"}), LogicError);
}

}  // namespace
}  // namespace orthant::rank_classes_test
