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
