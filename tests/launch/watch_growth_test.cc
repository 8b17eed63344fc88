// Watches of many ranks on many hosts, as threads with a store in memory that counts requests. A healthy run costs each
// host a constant number of requests a second, however many ranks it has, and failures still reach every rank.
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <map>
#include <mutex>
#include <thread>

#include "base/clock.h"
#include "launch/host_board.h"
#include "launch/roll_call.h"
#include "launch/watch.h"
#include "tests/support/memory_store.h"
#include "tests/support/says.h"

namespace orthant::watch_growth_test {
namespace {

constexpr double kStart_s = 300;

void sleep_s(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

// The ranks of a run under a Watch. Rank r is on host r / (ranks / hosts).
class Ranks {
 public:
  Ranks(int ranks, int hosts, const WatchOptions& options, bool with_boards = true)
      : boards_(static_cast<size_t>(ranks)), watches_(static_cast<size_t>(ranks)) {
    in_parallel([&](int rank) {
      WatchOptions own = options;
      if (with_boards) own.board = HostBoard::join(store_, ranks, fmt::format("host {}", rank / (ranks / hosts)));
      own.on_failure = [this, rank](const std::string& message, bool must_report) {
        const std::lock_guard lock(mutex_);
        failures_[rank] = message;
        if (must_report) reports_.push_back(message);
      };
      boards_[static_cast<size_t>(rank)] = own.board;
      watches_[static_cast<size_t>(rank)] = std::make_unique<Watch>(store_, "comm/0", rank, ranks, kStart_s, own);
    });
  }

  // All ranks at once, each in a thread of its own.
  void in_parallel(const std::function<void(int rank)>& act) {
    std::vector<std::thread> threads;
    for (size_t rank = 0; rank < watches_.size(); ++rank) threads.emplace_back(act, static_cast<int>(rank));
    for (std::thread& thread : threads) thread.join();
  }
  Watch& operator[](int rank) { return *watches_[static_cast<size_t>(rank)]; }
  HostBoard& board(int rank) { return *boards_[static_cast<size_t>(rank)]; }
  const Store& store() const { return store_; }
  int64_t requests() const { return memory_->requests(); }
  size_t num_failed() const {
    const std::lock_guard lock(mutex_);
    return failures_.size();
  }
  std::vector<std::string> reports() const {
    const std::lock_guard lock(mutex_);
    return reports_;
  }
  // Waits until `num` ranks know of a failure. Returns the seconds that it took.
  double seconds_until_failed(size_t num) const {
    const auto start = Clock::now();
    while (num_failed() < num && seconds_since(start) < 20) sleep_s(0.005);
    return seconds_since(start);
  }

 private:
  const c10::intrusive_ptr<MemoryStore> memory_ = c10::make_intrusive<MemoryStore>();
  const Store store_ = store_of(memory_);
  mutable std::mutex mutex_;
  std::map<int, std::string> failures_;
  std::vector<std::string> reports_;
  std::vector<std::shared_ptr<HostBoard>> boards_;
  std::vector<std::unique_ptr<Watch>> watches_;
};

struct Counts {
  int64_t start = 0, end = 0;
  double per_second = 0;
};

Counts count_requests(int ranks, int hosts, double seconds, bool with_boards = true) {
  Ranks run(ranks, hosts, {}, with_boards);
  Counts counts{.start = run.requests()};
  EXPECT_EQ(run.store().requests(), run.requests());  // what Store counts is what a store receives
  sleep_s(0.5);                                       // every leader has asked for the first time
  const int64_t before = run.requests();
  const auto start = Clock::now();
  sleep_s(seconds);
  counts.per_second = static_cast<double>(run.requests() - before) / seconds_since(start);
  const int64_t healthy = run.requests();
  run.in_parallel([&](int rank) { run[rank].leave(true); });
  counts.end = run.requests() - healthy;
  EXPECT_EQ(run.num_failed(), 0u);
  fmt::print(
      "{} ranks on {} hosts: {:.1f} requests per rank to start, {:.1f} a second per host, {:.1f} per rank to end\n",
      ranks, hosts, static_cast<double>(counts.start) / ranks, counts.per_second / hosts,
      static_cast<double>(counts.end) / ranks);
  return counts;
}

void check_requests(int ranks, int hosts, double seconds) {
  const Counts counts = count_requests(ranks, hosts, seconds);
  EXPECT_LE(counts.start, 20 * ranks);  // 5, and 3 whenever a rank that waits asks again
  EXPECT_LE(counts.end, 4 * ranks);
  EXPECT_LE(counts.per_second, 11 * hosts);  // 8, and those that fall into the interval by chance
  EXPECT_GE(counts.per_second, 2 * hosts);
}

TEST(WatchGrowth, AHealthyRunCostsEachHostAFewRequestsASecond) {
  check_requests(256, 16, 1.5);
  // The negative control: without boards every rank asks.
  EXPECT_GT(count_requests(256, 16, 0.6, false).per_second, 16 * 11);
}

TEST(LongWatchGrowth, FourThousandRanksOnHostsOfEight) { check_requests(4096, 512, 5); }

TEST(WatchGrowth, OneHostPostsNoHeartbeats) { EXPECT_LE(count_requests(32, 1, 1).per_second, 4); }

TEST(WatchGrowth, AFailureReachesAllHosts) {
  Ranks run(32, 4, {});
  EXPECT_TRUE(run[13].abort("rank 13: disk full"));
  EXPECT_FALSE(run[20].abort("rank 20: a consequence"));
  EXPECT_LT(run.seconds_until_failed(30), 2);
  EXPECT_EQ(run.reports(), std::vector<std::string>{});  // rank 13 reports it, after abort()
  EXPECT_EQ(run[31].failure(), "rank 13: disk full");
}

// A launcher posts into the store; it may be on another host.
TEST(WatchGrowth, APostedFailureReachesRanksThatDoNotLead) {
  Ranks run(16, 2, {});
  ASSERT_TRUE(post_failure(run.store(), "rank 3 was killed by SIGKILL"));
  EXPECT_LT(run.seconds_until_failed(16), 2);
  EXPECT_EQ(run.reports(), std::vector<std::string>{});
}

TEST(WatchGrowth, AnotherRankLeadsAfterTheLeaderHasLeft) {
  Ranks run(8, 2, {.period_s = 0.05, .board_period_s = 0.02});
  sleep_s(0.2);
  for (int left = 0; left < 3; ++left) {
    for (int rank = 0; rank < 4; ++rank) {
      HostBoard& board = run.board(rank);
      if (!board.is_watched(board.find(rank)) || !board.lead(board.find(rank))) continue;
      run[rank].leave(true);
      break;
    }
    sleep_s(0.2);
  }
  ASSERT_TRUE(post_failure(run.store(), "posted late"));
  run.seconds_until_failed(5);
  EXPECT_EQ(run.num_failed(), 5u);  // the last rank of the first host, and all four of the second
}

// The last rank of a host to end says so, and its silence is no failure.
TEST(WatchGrowth, AHostThatHasEndedIsNotMissed) {
  Ranks run(12, 3, {.period_s = 0.05, .board_period_s = 0.02, .heartbeat = {.period_s = 0.05, .timeout_s = 0.4}});
  for (const int rank : {4, 5, 6, 7}) run[rank].leave(true);
  sleep_s(1.2);
  EXPECT_EQ(run.num_failed(), 0u);
  // The next host watches the one before it. Its threads stop without a goodbye, as if the host were frozen.
  for (const int rank : {0, 1, 2, 3}) run.board(rank).set_activity(run.board(rank).find(rank), "step 9");
  sleep_s(0.2);
  for (const int rank : {0, 1, 2, 3}) run[rank].leave(false);
  EXPECT_LT(run.seconds_until_failed(4), 5);
  ASSERT_EQ(run.reports().size(), 1u);
  EXPECT_TRUE(says(run.reports()[0], {"the host of rank", "and 3 other ranks has sent no heartbeat for",
                                      "last reported activity: step 9"}));
}

// A suspicious rank makes its leader look at all hosts with less patience.
TEST(WatchGrowth, AFailedOperationShowsADeadHost) {
  Ranks run(8, 4,
            {.period_s = 0.05,
             .board_period_s = 0.02,
             .heartbeat = {.period_s = 0.05, .timeout_s = 30, .suspected_timeout_s = 0.3}});
  sleep_s(0.2);
  run[4].leave(false), run[5].leave(false);  // host 2; host 3 watches it
  sleep_s(0.6);
  EXPECT_EQ(run.num_failed(), 0u);                      // 30 s are not over
  const std::string cause = run[1].wait_for_cause(10);  // on host 0
  EXPECT_TRUE(says(cause, {"the host of rank", "and 1 other rank has sent no heartbeat for"}));
}

}  // namespace
}  // namespace orthant::watch_growth_test
