// Compares the bytes that ranks send with the plan, and checks that verify does so.
#include "runtime/traffic.h"

#include <gtest/gtest.h>

#include "runtime/verify.h"
#include "tests/support/tiny_run.h"

namespace orthant::traffic_test {
namespace {

TEST(TrafficDifference, NamesCollectiveAxesAndNumbers) {
  const TrafficTable planned = {{{"data", "all_reduce"}, {2, {64, 64}}}, {{"ring", "exchange"}, {0, {}}}};
  EXPECT_EQ(traffic_difference(planned, {{{"data", "all_reduce"}, {2, {64, 64}}}}), "");
  EXPECT_EQ(
      traffic_difference(planned, {{{"data", "all_reduce"}, {1, {64, 64}}}}),
      "sends 64 and receives 64 bytes in 1 call of all_reduce over data, but the plan states 64 and 64 bytes in 2 "
      "calls");
  EXPECT_EQ(
      traffic_difference(planned, {{{"data", "all_reduce"}, {2, {64, 72}}}}),
      "sends 64 and receives 72 bytes in 2 calls of all_reduce over data, but the plan states 64 and 64 bytes in 2 "
      "calls");
  EXPECT_EQ(
      traffic_difference(planned, {{{"data", "all_reduce"}, {2, {64, 64}}}, {{"ring", "exchange"}, {1, {8, 0}}}}),
      "sends 8 and receives 0 bytes in 1 call of exchange over ring, but the plan states 0 and 0 bytes in 0 calls");
}

TEST(TrafficDifference, IsCountedFromTheFirstReading) {
  const TrafficTable before = {{{"data", "all_reduce"}, {1, {10, 20}}}};
  const TrafficTable after = {{{"data", "all_reduce"}, {3, {50, 90}}}, {{"data", "broadcast"}, {1, {4, 0}}}};
  EXPECT_EQ(traffic_since(before, after),
            (TrafficTable{{{"data", "all_reduce"}, {2, {40, 70}}}, {{"data", "broadcast"}, {1, {4, 0}}}}));
}

TEST(Verify, FailsWhereARankSendsOrReceivesAnotherNumberOfBytesThanPlanned) {
  const TinyRun run;
  for (std::vector<int64_t> CommunicationEntry::* bytes : {&CommunicationEntry::bytes, &CommunicationEntry::received}) {
    Plan plan = run.plan(2);
    (plan.communication.front().*bytes)[static_cast<size_t>(plan.classes.of(1))] += 8;
    const VerifyReport report = verify_layout(plan, run.data(), 1);
    EXPECT_FALSE(report.ok);
    EXPECT_EQ(report.first_difference.rfind("step 1, rank 1: sends ", 0), 0u) << report.first_difference;
  }
}

}  // namespace
}  // namespace orthant::traffic_test
