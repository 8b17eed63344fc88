// The limit of file descriptors is raised as far as the user may, and a need above it is refused with the numbers.
#include "base/descriptors.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <vector>

#include "base/errors.h"
#include "tests/support/says.h"

namespace orthant::descriptors_test {
namespace {

class Descriptors : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before_), 0);
    if (before_.rlim_max == RLIM_INFINITY) GTEST_SKIP() << "the hard limit is infinite";
  }
  void TearDown() override { setrlimit(RLIMIT_NOFILE, &before_); }

  void set_soft_limit(rlim_t limit) {
    const rlimit lower{limit, before_.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &lower), 0);
  }
  int64_t soft_limit() {
    rlimit now{};
    getrlimit(RLIMIT_NOFILE, &now);
    return static_cast<int64_t>(now.rlim_cur);
  }
  int64_t hard_limit() const { return static_cast<int64_t>(before_.rlim_max); }

 private:
  rlimit before_{};
};

TEST_F(Descriptors, AreRaisedToTheHardLimit) {
  set_soft_limit(64);
  EXPECT_EQ(raise_descriptor_limit(), hard_limit());
  EXPECT_EQ(soft_limit(), hard_limit());
}

TEST_F(Descriptors, ANeedAboveTheHardLimitIsRefused) {
  set_soft_limit(64);
  require_descriptors(hard_limit(), "nothing");
  const std::string refusal =
      message_of<CommError>([&] { require_descriptors(hard_limit() + 1, "3 ranks of this process"); });
  EXPECT_TRUE(says(refusal, {fmt::format("at least {} for 3 ranks of this process", hard_limit() + 1),
                             fmt::format("may set is {}", hard_limit()), "ulimit -Hn"}));
}

TEST_F(Descriptors, AreReportedWhenNearlyAllAreInUse) {
  EXPECT_EQ(descriptor_problem(), "");
  const int64_t hard = hard_limit();
  if (hard > 100'000) GTEST_SKIP() << "the hard limit is too high to use all descriptors";
  std::vector<int> open;
  raise_descriptor_limit();
  for (int fd = 0; (fd = dup(0)) >= 0;) open.push_back(fd);
  ASSERT_FALSE(open.empty());
  for (int i = 0; i < 2 && !open.empty(); ++i) close(open.back()), open.pop_back();  // the report opens a folder
  EXPECT_TRUE(says(descriptor_problem(), {fmt::format("of {} file descriptors are in use", hard), "raise the hard"}));
  for (const int fd : open) close(fd);
}

}  // namespace
}  // namespace orthant::descriptors_test
