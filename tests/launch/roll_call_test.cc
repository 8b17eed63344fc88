// call_roll(): every rank learns the answer, missing ranks are named, and the store gets a constant number of requests
// from each rank.
#include "launch/roll_call.h"

#include <gtest/gtest.h>

#include <mutex>
#include <numeric>
#include <set>
#include <thread>

#include "base/errors.h"
#include "base/text.h"
#include "comm/thread_ranks.h"
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

}  // namespace
}  // namespace orthant::roll_call_test
