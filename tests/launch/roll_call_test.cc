// call_roll(): every rank learns the answer, missing ranks are named, and the store gets a constant number of requests
// from each rank. Also the Watch that ends a rank which cannot leave.
#include "launch/roll_call.h"

#include <gtest/gtest.h>

#include <map>
#include <mutex>
#include <numeric>
#include <set>
#include <thread>

#include "base/errors.h"
#include "base/text.h"
#include "comm/thread_ranks.h"
#include "launch/watch.h"
#include "tests/support/says.h"

namespace orthant::roll_call_test {
namespace {

RollCall call_of(const Rendezvous& rendezvous, double timeout_s = 60) {
  return {.store = rendezvous.store.under("call"),
          .rank = rendezvous.rank,
          .world_size = rendezvous.world_size,
          .timeout_s = timeout_s,
          .check = {}};
}

TEST(RollCall, RankZeroSummarizesForAll) {
  for (const int ranks : {1, 2, 7}) {
    const auto joined = [](const std::vector<std::string>& texts) { return join(texts, ","); };
    std::string wanted = "0";
    for (int rank = 1; rank < ranks; ++rank) wanted += fmt::format(",{}", rank);
    run_ranks(ranks, [&](Rendezvous rendezvous, int rank) {
      EXPECT_EQ(call_roll(call_of(rendezvous), fmt::format("{}", rank), joined), wanted);
    });
  }
}

TEST(RollCall, NobodyGoesOnBeforeAllHaveCome) {
  std::atomic<int> come = 0;
  run_ranks(5, [&](Rendezvous rendezvous, int rank) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20 * rank));
    ++come;
    EXPECT_EQ(call_roll(call_of(rendezvous)), "");
    EXPECT_EQ(come, 5);
  });
}

TEST(RollCall, AllRanksNameTheMissingOnes) {
  std::mutex mutex;
  std::set<std::string> messages;
  run_ranks(20, [&](Rendezvous rendezvous, int rank) {
    if (rank % 2 == 1) return;
    const std::string message = message_of<MissingRanks>([&] { call_roll(call_of(rendezvous, 0.2)); });
    EXPECT_TRUE(says(message, {fmt::format("rank {}: ranks 1, 3, 5, 7, 9, 11, 13, 15 and 2 others of 20 did not", rank),
                               "within 0.2 s", "run.timeout_s"}));
  });
  // If rank 0 is missing, the others do not ask for each rank.
  run_ranks(3, [&](Rendezvous rendezvous, int rank) {
    if (rank == 0) return;
    EXPECT_TRUE(says(message_of<MissingRanks>([&] { call_roll(call_of(rendezvous, 0.2)); }), {"rank 0 of 3 did not"}));
  });
}

TEST(RollCall, SomeRanksMayCallAlone) {
  run_ranks(4, [&](Rendezvous rendezvous, int rank) {
    if (rank % 2 == 0) return;
    const auto of_members = [&](double timeout_s) {
      RollCall call = call_of(rendezvous, timeout_s);
      call.members = {1, 3};
      return call;
    };
    EXPECT_EQ(call_roll(of_members(20)), "");
    if (rank == 1) return;
    RollCall alone = of_members(0.2);
    alone.store = alone.store.under("alone");
    EXPECT_TRUE(says(message_of<MissingRanks>([&] { call_roll(alone); }), {"rank 3: rank 1 of 4 did not connect"}));
  });
}

TEST(RollCall, EndsWithTheFirstAnswer) {
  run_ranks(3, [&](Rendezvous rendezvous, int rank) {
    const RollCall call = call_of(rendezvous);
    if (rank == 2) return end_roll_call(call.store, "another run");
    EXPECT_EQ(call_roll(call), "another run");
    end_roll_call(call.store, "too late");
    EXPECT_EQ(call_roll(call), "another run");
  });
}

TEST(RollCall, AFailedRunEndsTheWait) {
  run_ranks(2, [&](Rendezvous rendezvous, int rank) {
    if (rank == 1) return;
    RollCall call = call_of(rendezvous);
    call.check = [] { throw CommError("rank 1 has failed"); };
    EXPECT_EQ(message_of<CommError>([&] { call_roll(call); }), "rank 1 has failed");
  });
}

// The warnings of two ranks, of which one comes late.
std::vector<std::string> warnings_with(int late_rank, int late_s) {
  std::mutex mutex;
  std::vector<std::string> warnings;
  run_ranks(2, [&](Rendezvous rendezvous, int rank) {
    RollCall call = call_of(rendezvous);
    call.missed = "save";
    call.warn = [&](const std::string& warning) {
      const std::lock_guard lock(mutex);
      warnings.push_back(fmt::format("{}: {}", rank, warning));
    };
    if (rank == late_rank) std::this_thread::sleep_for(std::chrono::seconds(late_s));
    call_roll(call);
  });
  return warnings;
}

TEST(LongRollCall, WarnsOnceOfARankThatIsLate) {
  EXPECT_EQ(warnings_with(1, 9), std::vector<std::string>{"0: the run has waited 8 s for rank 1 of 2 to save"});
  EXPECT_EQ(warnings_with(0, 9), std::vector<std::string>{"1: the run has waited 8 s for rank 0 of 2 to save"});
  EXPECT_EQ(warnings_with(1, 5), std::vector<std::string>{});  // the control
}

// Rank 0 fails and then cannot leave, as if it waited for a disk. Its Watch ends it, and must print the reason.
TEST(Watch, ARankThatMustReportAndCannotLeaveIsEndedWithItsReport) {
  std::mutex mutex;
  std::map<int, bool> must_report_of;
  run_ranks(2, [&](Rendezvous rendezvous, int rank) {
    WatchOptions options{.period_s = 0.1};
    options.leave_s = 0.3;
    options.on_failure = [&, rank](const std::string& message, bool must_report) {
      EXPECT_EQ(message, "the disk is full");
      const std::lock_guard lock(mutex);
      must_report_of[rank] = must_report;
    };
    Watch watch(rendezvous.store, "watch", rank, 2, 60, options);
    if (rank == 0) {
      EXPECT_TRUE(watch.abort("the disk is full"));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1500));
    watch.leave(false);
  });
  EXPECT_EQ(must_report_of, (std::map<int, bool>{{0, true}, {1, false}}));
}

}  // namespace
}  // namespace orthant::roll_call_test
