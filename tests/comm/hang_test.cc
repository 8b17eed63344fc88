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

// Rank 0 of two waits for rank 1 in a barrier, and rank 1 computes. The test calls tick() itself, so no time passes but
// that of the requests, which run in the background.
struct TwoRanks {
  const Store store = Store::in_process();
  int64_t progress[2] = {};
  std::vector<std::string> reports;
  HangWatch waiting = watch_of(0), computing = watch_of(1);

  HangWatch watch_of(int rank) {
    RankStatus status{.rank = rank, .activity = "0F3"};
    if (rank == 0) status.operation = "barrier", status.group = "data", status.number = 1;
    status.started["data"].collectives = 1 - rank;
    return {line(2), rank, store,
            {.progress = [this, rank] { return progress[rank]; },
             .status = [status] { return status; },
             .report = [this](const std::string& text) { reports.push_back(text); }}};
  }

  // The time in seconds until the next report; 0 if there is none within limit_s.
  double time_to_report(double limit_s, bool rank_1_moves = false) {
    reports.clear();
    for (int tick = 1; tick <= 2 * limit_s; ++tick) {
      progress[1] += rank_1_moves;
      computing.tick(0.5), waiting.tick(0.5);
      sleep_s(0.003);
      if (!reports.empty()) return tick * 0.5;
    }
    return 0;
  }

  // Whether this number of ranks has a status in the store, now or as soon as the requests in the background are done.
  bool have_posted(size_t count) const {
    for (int i = 0; i < 1000; ++i, sleep_s(0.01)) {
      if (read_statuses(store, 2).size() == count) return true;
    }
    return false;
  }
};

TEST(Hang, ReportedWithin10Seconds) {
  TwoRanks control;
  EXPECT_EQ(control.time_to_report(60, true), 0);
  TwoRanks ranks;
  const double time_s = ranks.time_to_report(60);
  EXPECT_GE(time_s, 5);
  EXPECT_LE(time_s, 10);
  EXPECT_TRUE(says(ranks.reports.front(), {"1 rank waits, directly or through others, for rank 1",
                                           "rank 1 waits for no rank: for 5 s it has been in 0F3",
                                           "rank 0 waits for rank 1 in barrier"}))
      << ranks.reports.front();
}

TEST(Hang, PicturesBecomeRareIfRanksAreOnlySlow) {
  TwoRanks ranks;
  const double first_s = ranks.time_to_report(60);
  ++ranks.progress[0];
  EXPECT_GT(ranks.time_to_report(3), 0);
  EXPECT_TRUE(says(ranks.reports.front(), {"make progress again"}));
  EXPECT_GE(ranks.time_to_report(60), first_s + 3);
  EXPECT_EQ(ranks.time_to_report(600), 0) << "one report for each hang";
}

TEST(Hang, ARankPostsItsStatusOnlyWhileItIsStill) {
  TwoRanks ranks;
  ranks.time_to_report(4.5, true);
  EXPECT_TRUE(read_statuses(ranks.store, 2).empty());
  ranks.time_to_report(2, true);
  ASSERT_TRUE(ranks.have_posted(1));
  EXPECT_EQ(read_statuses(ranks.store, 2).front().operation, "barrier");
  ++ranks.progress[0];
  ranks.time_to_report(1, true);
  EXPECT_TRUE(ranks.have_posted(0));
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
