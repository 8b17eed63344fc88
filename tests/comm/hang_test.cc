// A hang is reported once, by rank 0, with the rank that all others wait for. A rank that makes progress prevents the
// report, however long the others wait.
#include <mutex>
#include <thread>

#include "base/clock.h"
#include "base/errors.h"
#include "comm/hang_watch.h"
#include "tests/comm/line.h"
#include "tests/support/says.h"

namespace orthant::hang_test {
namespace {

constexpr double kHang_s = 0.5;

void sleep_s(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

// The warnings of all ranks while each runs `work`.
std::vector<std::string> warnings(const Mesh& mesh, const std::function<void(Comm&)>& work, double timeout_s = 60) {
  std::mutex mutex;
  std::vector<std::string> seen;
  run_ranks(mesh.size(), [&](Rendezvous rendezvous, int rank) {
    CommOptions options{.timeout_s = timeout_s, .hang_s = kHang_s};
    options.on_warning = [&, rank](const std::string& warning) {
      const std::lock_guard lock(mutex);
      seen.push_back(std::to_string(rank) + ": " + warning);
    };
    Comm comm(mesh, rank, rendezvous, options);
    work(comm);
  });
  return seen;
}

TEST(Hang, RankThatAllWaitForIsNamedOnce) {
  const auto seen = warnings(line(4), [](Comm& comm) {
    const at::Tensor tensor = at::ones({16});
    for (int step = 0; step < 3; ++step) comm.all_reduce(tensor, kOverData).wait();
    comm.set_activity(comm.rank() == 2 ? "1F3, action 7 of 12 of step 12" : "2B5, action 9 of 12 of step 12");
    if (comm.rank() == 2) sleep_s(5 * kHang_s);
    comm.all_reduce(tensor, kOverData).wait();
    sleep_s(kHang_s);
  });
  ASSERT_EQ(seen.size(), 2);
  EXPECT_TRUE(says(seen[0], {"0: no rank has made progress for 0.5 s. ",  //
                             "3 ranks wait, directly or through others, for rank 2:", "rank 2 waits for no rank: for ",
                             "it has been in 1F3, action 7 of 12 of step 12",
                             "ranks 0-1, 3 wait for rank 2 in all_reduce of 64 B over data (2B5, action 9"}))
      << seen[0];
  EXPECT_TRUE(says(seen[1], {"0: the ranks make progress again, after "})) << seen[1];
}

// The negative controls: nothing waits long, or one rank makes progress meanwhile.
TEST(Hang, ProgressOfOneRankIsNoHang) {
  for (const bool is_late : {false, true}) {
    const auto seen = warnings(line(3), [is_late](Comm& comm) {
      const auto start = Clock::now();
      for (int i = 0; is_late && comm.rank() == 1 && seconds_since(start) < 5 * kHang_s; ++i) {
        comm.set_activity("0F" + std::to_string(i));
        sleep_s(kHang_s / 10);
      }
      comm.barrier(kOverData).wait();
    });
    EXPECT_TRUE(seen.empty()) << seen.front();
  }
}

// Rank 0 of two, which waits for rank 1 in a barrier. The test calls tick() itself, so no time passes.
struct WaitingRank {
  const Store store = Store::in_process();
  int64_t progress = 0;
  std::vector<std::string> reports;
  HangWatch watch{
      line(2),
      0,
      {.progress = [this] { return progress; },
       .status =
           [] {
             return RankStatus{
                 .operation = "barrier", .group = "data", .number = 1, .started = {{"data", {.collectives = 1}}}};
           },
       .report = [this](const std::string& text) { reports.push_back(text); }}};

  // The time in seconds until the first report; 0 if there is none within limit_s.
  double time_to_report(double limit_s, bool rank_1_lives) {
    reports.clear();
    for (int beat = 1; beat <= 2 * limit_s; ++beat) {
      store.set("alive/1", fmt::format("identity\n{}\n0F3", rank_1_lives ? beat : 0));
      watch.tick(0.5, store);
      if (!reports.empty()) return beat * 0.5;
    }
    return 0;
  }
};

TEST(Hang, RankWithoutStatusAndHeartbeatsIsSilent) {
  WaitingRank rank;
  EXPECT_EQ(rank.time_to_report(60, true), 0);  // the control: rank 1 posts heartbeats, so it makes progress
  WaitingRank other;
  const double time_s = other.time_to_report(60, false);
  EXPECT_GE(time_s, 5);
  EXPECT_LE(time_s, 10);
  EXPECT_TRUE(says(other.reports.front(),
                   {"1 rank waits, directly or through others, for rank 1",
                    "rank 1 does not answer (last reported activity: 0F3)", "rank 0 waits for rank 1 in barrier"}));
}

TEST(Hang, PicturesBecomeRareIfRanksAreOnlySlow) {
  WaitingRank rank;
  const double first_s = rank.time_to_report(60, false);
  ++rank.progress;
  EXPECT_EQ(rank.time_to_report(1, false), 0.5);  // "the ranks make progress again"
  EXPECT_TRUE(says(rank.reports.front(), {"make progress again"}));
  EXPECT_GE(rank.time_to_report(60, false), first_s + 3);
  // One report for each hang.
  EXPECT_EQ(rank.time_to_report(600, false), 0);
}

TEST(Hang, ARankPostsItsStatusOnlyWhileItIsStill) {
  WaitingRank rank;
  rank.time_to_report(4, true);
  EXPECT_TRUE(read_statuses(rank.store, 2).empty());
  rank.time_to_report(2, true);
  ASSERT_EQ(read_statuses(rank.store, 2).size(), 1u);
  EXPECT_EQ(read_statuses(rank.store, 2).front().operation, "barrier");
  ++rank.progress;
  rank.time_to_report(1, true);
  EXPECT_TRUE(read_statuses(rank.store, 2).empty());
}

// A pause of the rank's own thread is no silence of the store.
TEST(Hang, SilenceOfTheStoreIsMeasuredWhileARankWaits) {
  StoreSilence silence;
  EXPECT_EQ(silence.measure(7), 0);
  sleep_s(0.05);
  EXPECT_GE(silence.measure(7), 0.05);
  sleep_s(2.5);
  EXPECT_LE(silence.measure(7), 2.3);
  EXPECT_EQ(silence.measure(8), 0);
}

TEST(Hang, CycleOfReceivesIsNamed) {
  std::vector<std::string> seen;
  const std::string error = message_of<CommError>([&] {
    seen = warnings(
        line(3), [](Comm& comm) { comm.recv(at::ones({4}), kOverData, (comm.rank() + 1) % 3).wait(); }, 5 * kHang_s);
  });
  // The operations time out, and the error has the same picture.
  EXPECT_TRUE(says(error, {"recv from rank", "no progress from the peers", "3 ranks wait for each other in a cycle",
                           "rank 0 waits for rank 1, rank 1 for rank 2, rank 2 for rank 0"}))
      << error;
}

}  // namespace
}  // namespace orthant::hang_test
