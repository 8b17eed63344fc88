// A receive is posted before the last computation that precedes it, but never before FINALIZE.
#include "schedule/posted_receives.h"

#include <gtest/gtest.h>

#include <sstream>

namespace orthant::posted_receives_test {
namespace {

std::vector<Action> row_of(const std::string& text) {
  std::istringstream words(text);
  std::vector<Action> row;
  for (std::string word; words >> word;) row.push_back(parse_action(word));
  return row;
}

TEST(PostedReceives, PrecedeTheLastComputation) {
  EXPECT_EQ(posted_receives(row_of("0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0RECV_B1 0B0 0B1")),
            (std::vector<PostedReceive>{{4, 2}, {5, 2}}));
  // Without a computation before it, a receive is posted in its own turn.
  EXPECT_EQ(posted_receives(row_of("1RECV_F0 1F0 1RECV_F1 1F1")), (std::vector<PostedReceive>{{0, 0}, {2, 1}}));
}

TEST(PostedReceives, DoNotPrecedeFinalize) {
  EXPECT_EQ(posted_receives(row_of("0F0 0SEND_F0 0FINALIZE 0RECV_B0 0B0 0RECV_B1 0B1")),
            (std::vector<PostedReceive>{{3, 3}, {5, 4}}));
}

}  // namespace
}  // namespace orthant::posted_receives_test
