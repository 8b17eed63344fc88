// Failure of a rank: no rank hangs, and the message names rank, operation, axes, activity and cause.
#include <atomic>
#include <filesystem>
#include <iterator>
#include <memory>
#include <mutex>
#include <thread>

#include "base/errors.h"
#include "launch/host_board.h"
#include "launch/watch.h"
#include "tests/comm/line.h"
#include "tests/support/says.h"

namespace orthant::failure_test {
namespace {

// One rank of four throws. The others end with an error that contains its message, and run_ranks() throws its error.
TEST(Failure, TheFirstCauseIsThrownAndNobodyHangs) {
  // The timeout is long, so the test ends soon only if the failure interrupts the operations.
  const CommOptions patient{.timeout_s = 500};
  std::mutex mutex;
  std::vector<std::string> seen(4);
  EXPECT_THROW(run_ranks(4,
                         [&](Rendezvous rendezvous, int rank) {
                           Comm comm(line(4), rank, rendezvous, patient);
                           comm.prepare(kOverData);
                           if (rank == 2) throw DataError("corpus.bin: offset 12: not a token");
                           comm.set_activity("0B3, action 7 of 12 of step 41");
                           at::Tensor big = at::ones({1024});
                           try {
                             comm.all_reduce(big, kOverData).wait();
                           } catch (const CommError& error) {
                             const std::lock_guard lock(mutex);
                             seen[static_cast<size_t>(rank)] = error.what();
                             throw;
                           }
                         }),
               DataError);
  for (const int rank : {0, 1, 3}) {
    EXPECT_TRUE(says(seen[static_cast<size_t>(rank)],
                     {"rank " + std::to_string(rank) + ": ", "all_reduce over data (4.0 KiB) failed",
                      "during 0B3, action 7 of 12 of step 41", "rank 2: corpus.bin: offset 12: not a token"}));
  }
}

TEST(Failure, RankWaitingOnSurvivorFailsToo) {
  // Rank 2 waits for rank 1 only, rank 1 for rank 0 only, and rank 0 fails.
  const Mesh mesh({{"data", 3}});
  std::atomic<int> comm_errors = 0;
  EXPECT_THROW(run_ranks(3,
                         [&](Rendezvous rendezvous, int rank) {
                           Comm comm(mesh, rank, rendezvous, {.timeout_s = 500});
                           comm.prepare(kOverData);
                           if (rank == 0) throw std::runtime_error("no memory");
                           at::Tensor tensor = at::empty({8});
                           try {
                             comm.recv(tensor, kOverData, rank - 1).wait();
                           } catch (const CommError&) {
                             ++comm_errors;
                             throw;
                           }
                         }),
               std::runtime_error);
  EXPECT_EQ(comm_errors, 2);
}

// Operations in progress are abandoned together with their tensors: memory to which a peer may still write is not
// freed.
TEST(Failure, OneThatFailsAmongOverlappingOperationsEndsAll) {
  constexpr int kRounds = 5, kRanks = 4, kOperations = 6;
  for (int round = 0; round < kRounds; ++round) {
    std::atomic<int> ended = 0;
    const auto work = [&](Rendezvous rendezvous, int rank) {
      const auto count = std::shared_ptr<void>(nullptr, [&](void*) { ++ended; });
      Comm comm(line(kRanks), rank, rendezvous, {.timeout_s = 500});
      std::vector<at::Tensor> tensors;
      std::vector<Work> works;
      for (int i = 0; i < kOperations; ++i) {
        tensors.push_back(at::ones({i % 2 == 0 ? 100 : 1 << 18}));
        works.push_back(comm.all_reduce(tensors.back(), kOverData));
        if (rank == 2 && i == round) throw DataError("corpus.bin: offset 12: not a token");
      }
      for (Work& each : works) each.wait();
    };
    EXPECT_TRUE(says(message_of<DataError>([&] { run_ranks(kRanks, work); }), {"corpus.bin: offset 12"}));
    EXPECT_EQ(ended, kRanks);
  }
}

TEST(Failure, ARankThatFailsWhileTheOthersConnectEndsThem) {
  // For example, UCX does not start on one rank: it never posts its address.
  const auto start = std::chrono::steady_clock::now();
  EXPECT_THROW(run_ranks(3,
                         [&](Rendezvous rendezvous, int rank) {
                           if (rank == 1) {
                             const Watch watch(rendezvous.store, "comm/0", rank, 3, 60, {});
                             throw ConfigError("UCX failed while starting");
                           }
                           Comm comm(line(3), rank, rendezvous, {.connect_timeout_s = 50});
                         }),
               ConfigError);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
}

TEST(Failure, UnconnectedRankIsNamed) {
  std::string message;
  run_ranks(2, [&](Rendezvous rendezvous, int rank) {
    const auto connect_ranks = [&] { Comm comm(line(2), rank, rendezvous, {.connect_timeout_s = 0.3}); };
    if (rank == 0) return void(message = message_of<CommError>(connect_ranks));
    const Watch watch(rendezvous.store, "comm/0", rank, 2, 60, {});
    std::this_thread::sleep_for(std::chrono::seconds(1));
  });
  EXPECT_TRUE(says(message, {"rank 0: rank 1 of 2 did not finish connecting to the ", "within 0.3 s"}));
}

// Rank 1 announces Gloo and never connects, so rank 0 must fail soon after connect_timeout_s.
TEST(Failure, GlooConnectsWithinMeetTimeout) {
  const auto start = std::chrono::steady_clock::now();
  std::string message;
  run_ranks(2, [&](Rendezvous rendezvous, int rank) {
    const CommOptions options{.transport = "gloo", .timeout_s = 500, .connect_timeout_s = 1};
    if (rank == 0) return void(message = message_of<CommError>([&] { Comm comm(line(2), rank, rendezvous, options); }));
    const Watch watch(rendezvous.store, "comm/0", rank, 2, 60, {});
    const Store introductions = rendezvous.store.under("comm/0/introductions");
    call_roll(watch.roll_call(introductions, 60), R"(["here", "its transport is gloo", 0, "", ""])",
              [](const auto&) { return ""; });
    std::this_thread::sleep_for(std::chrono::seconds(2));
  });
  EXPECT_TRUE(says(message, {"cannot connect"}));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
}

// The destructor of a Comm waits for the other ranks, and reports a rank that does not arrive within timeout_s.
TEST(Failure, RankMissingAtCloseIsNamed) {
  std::mutex mutex;
  std::string reported;
  run_ranks(2, [&](Rendezvous rendezvous, int rank) {
    CommOptions options{.timeout_s = rank == 0 ? 0.3 : 500};
    options.on_failure = [&, rank](const std::string& message, bool) {
      const std::lock_guard lock(mutex);
      if (rank == 0) reported = message;
    };
    Comm comm(line(2), rank, rendezvous, options);
    if (rank == 1) std::this_thread::sleep_for(std::chrono::seconds(1));
  });
  EXPECT_TRUE(says(reported, {"rank 0: rank 1 of 2 did not reach the end of the run within 0.3 s"}));
}

// A rank that destroys its Comm with an operation in progress ends as soon as another rank fails.
TEST(Failure, ClosingWithPendingWorkEndsOnPeerFailure) {
  const auto start = std::chrono::steady_clock::now();
  EXPECT_THROW(run_ranks(2,
                         [&](Rendezvous rendezvous, int rank) {
                           Comm comm(line(2), rank, rendezvous, {.timeout_s = 60});
                           comm.barrier(kOverData).wait();
                           if (rank == 1) {
                             // The other rank is closing by then.
                             std::this_thread::sleep_for(std::chrono::milliseconds(300));
                             throw DataError("corpus.bin: offset 12: not a token");
                           }
                           Work forgotten = comm.recv(at::empty({8}), kOverData, 1);
                         }),
               DataError);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
}

size_t threads_of_this_process() {
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return static_cast<size_t>(std::distance(begin(tasks), end(tasks)));
}

// Memory to which a peer may still write is leaked on purpose, but no thread keeps running.
TEST(Failure, AnExceptionLeavesNoThreadBehind) {
  if (lacks("ucx")) GTEST_SKIP() << ucx_problem();
  const auto fail = [](bool fails) {
    run_ranks(2, [&](Rendezvous rendezvous, int rank) {
      Comm comm(line(2), rank, rendezvous, over("ucx"));
      comm.barrier(kOverData).wait();
      if (fails) throw DataError("corpus.bin: offset 12: not a token");
    });
  };
  fail(false);  // starts the threads that the process keeps
  const size_t before = threads_of_this_process();
  for (int round = 0; round < 3; ++round) EXPECT_THROW(fail(true), DataError);
  EXPECT_EQ(threads_of_this_process(), before);
}

TEST(Failure, ARankThatWaitsForAGroupToOpenIsFreed) {
  EXPECT_THROW(run_ranks(2,
                         [&](Rendezvous rendezvous, int rank) {
                           Comm comm(line(2), rank, rendezvous, {.timeout_s = 500});
                           if (rank == 0) throw ConfigError("nonsense");
                           comm.prepare(kOverData);
                         }),
               ConfigError);
}

TEST(Failure, TimeoutIsReported) {
  std::string message;
  EXPECT_THROW(run_ranks(2,
                         [&](Rendezvous rendezvous, int rank) {
                           Comm comm(line(2), rank, rendezvous, {.timeout_s = rank == 0 ? 0.5 : 500});
                           at::Tensor tensor = at::ones({4});
                           const auto wait = [&] { comm.recv(tensor, kOverData, 1).wait(); };
                           if (rank == 0) message = message_of<std::exception>(wait);
                           if (rank == 0) throw CommError(message);
                           comm.prepare(kOverData);
                           comm.recv(tensor, kOverData, 0, 5).wait();  // rank 0 and rank 1 wait for each other
                         }),
               CommError);
  EXPECT_TRUE(
      says(message, {"rank 0: recv from rank 1 over data (16 B) failed:", "no progress from the peers within 0.5 s"}));
}

// The timeout counts the seconds inside wait(), not those since the operation was posted.
TEST(Failure, AnOperationPostedBeforeALongComputationDoesNotTimeOut) {
  run_ranks(2, [&](Rendezvous rendezvous, int rank) {
    Comm comm(line(2), rank, rendezvous, {.timeout_s = 0.4});
    comm.prepare(kOverData);
    const int other = 1 - rank;
    at::Tensor mine = at::full({4}, rank, at::kFloat), theirs = at::zeros({4});
    Work received = comm.recv(theirs, kOverData, other);
    std::this_thread::sleep_for(std::chrono::milliseconds(800));
    comm.send(mine, kOverData, other).wait();
    received.wait();
    EXPECT_EQ(theirs[0].item<int>(), other);
  });
}

TEST(Failure, RanksThatDoNotComeAreNamed) {
  std::string message;
  run_ranks(3, [&](Rendezvous rendezvous, int rank) {
    const auto connect_ranks = [&] { Comm comm(line(3), rank, rendezvous, {.connect_timeout_s = 0.2}); };
    if (rank == 0) message = message_of<std::exception>(connect_ranks);
  });
  EXPECT_TRUE(says(message, {"ranks 1, 2 of 3 did not connect"}));
}

// If all ranks call abort(), exactly one gets true. Later calls return the same answer.
TEST(Failure, OneRankReports) {
  std::atomic<int> speakers = 0;
  run_ranks(4, [&](Rendezvous rendezvous, int rank) {
    Comm comm(line(4), rank, rendezvous, {.on_failure = [](const std::string&, bool) {}});
    speakers += comm.abort("loss is NaN at step 3");
    EXPECT_EQ(comm.abort("again"), comm.abort("and again"));
  });
  EXPECT_EQ(speakers, 1);
}

// abort() on one rank calls on_failure once on each other rank, with `must_report` false.
TEST(Failure, AbortReachesTheOthersCallbackOnce) {
  std::atomic<int> calls = 0, must_report_count = 0;
  run_ranks(3, [&](Rendezvous rendezvous, int rank) {
    std::mutex mutex;
    std::condition_variable changed;
    bool called = false;
    CommOptions options;
    options.on_failure = [&](const std::string& message, bool must_report) {
      EXPECT_EQ(message, "rank 0: disk full");
      must_report_count += must_report;
      ++calls;
      const std::lock_guard lock(mutex);
      called = true;
      changed.notify_all();
    };
    Comm comm(line(3), rank, rendezvous, options);
    if (rank == 0) {
      EXPECT_TRUE(comm.abort("rank 0: disk full"));
      return;
    }
    std::unique_lock lock(mutex);
    EXPECT_TRUE(changed.wait_for(lock, std::chrono::seconds(10), [&] { return called; }));
  });
  EXPECT_EQ(calls, 2);
  EXPECT_EQ(must_report_count, 0);
}

// Two ranks of this process watch each other for seconds_s. Rank 0 expects a heartbeat every heartbeat_s, rank 1 posts
// one every 0.5 s. Returns the failure that rank 0 reports, or "".
std::string message_after(double heartbeat_s, double seconds_s) {
  const Store store = Store::in_process();
  std::mutex mutex;
  std::string reported;
  WatchOptions options{
      .period_s = 0.02, .heartbeat = {.period_s = heartbeat_s, .timeout_s = 0.1}, .board = HostBoard::join(store, 2)};
  options.on_failure = [&](const std::string& message, bool) {
    const std::lock_guard lock(mutex);
    reported += message;
  };
  std::unique_ptr<Watch> other;
  WatchOptions rare = options;
  rare.heartbeat.period_s = 0.5;
  rare.on_failure = [](const std::string&, bool) {};
  std::thread coming([&] { other = std::make_unique<Watch>(store, "watch", 1, 2, 60, rare); });
  const Watch watch(store, "watch", 0, 2, 60, options);
  coming.join();
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds_s));
  const std::lock_guard lock(mutex);
  return reported;
}

TEST(Failure, SeldomHeartbeatsAreNoSilence) {
  EXPECT_EQ(message_after(0.5, 1.2), "");
  // Negative control: it expects heartbeats more often.
  EXPECT_TRUE(says(message_after(0.02, 1.2), {"rank 1 has sent no heartbeat for"}));
}

// Rank 2 watches rank 1 and leaves. Rank 3 then watches rank 1, which posts heartbeats too seldom.
TEST(Failure, ASilentRankIsFoundAlthoughItsWatcherHasLeft) {
  const Store store = Store::in_process();
  const auto board = HostBoard::join(store, 4);
  std::mutex mutex;
  std::vector<std::string> reports;
  std::vector<std::unique_ptr<Watch>> watches(4);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 4; ++rank) {
    WatchOptions options{
        .period_s = 0.02, .heartbeat = {.period_s = rank == 1 ? 0.5 : 0.02, .timeout_s = 0.1}, .board = board};
    options.on_failure = [&](const std::string& message, bool must_report) {
      const std::lock_guard lock(mutex);
      if (must_report) reports.push_back(message);
    };
    threads.emplace_back([&, rank, options] {
      watches[static_cast<size_t>(rank)] = std::make_unique<Watch>(store, "watch", rank, 4, 60, options);
    });
    // The ranks enter in order: each watches the one that entered before it.
    while (board->find(rank) < 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  for (std::thread& thread : threads) thread.join();
  watches[2]->leave(true);
  std::this_thread::sleep_for(std::chrono::milliseconds(1000));
  const std::lock_guard lock(mutex);
  ASSERT_EQ(reports.size(), 1u);
  EXPECT_TRUE(says(reports.front(), {"rank 1 has sent no heartbeat for"}));
}

// A rank without heartbeats is named long before its silence ends the run, and again when they are back.
TEST(Failure, SilenceIsAWarningFirst) {
  const Store store = Store::in_process();
  const auto board = HostBoard::join(store, 2);
  std::mutex mutex;
  std::vector<std::string> warnings;
  std::vector<std::unique_ptr<Watch>> watches(2);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    // Rank 1 shows a heartbeat every second, but rank 0 expects them more often.
    WatchOptions options{
        .period_s = 0.02, .heartbeat = {.period_s = rank == 1 ? 1 : 0.02, .timeout_s = 500}, .board = board};
    options.heartbeat.warn_after_s = 0.5;
    options.on_failure = [](const std::string& message, bool) { ADD_FAILURE() << message; };
    options.on_warning = [&](const std::string& warning) {
      const std::lock_guard lock(mutex);
      warnings.push_back(warning);
    };
    threads.emplace_back([&, rank, options] {
      watches[static_cast<size_t>(rank)] = std::make_unique<Watch>(store, "watch", rank, 2, 60, options);
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::this_thread::sleep_for(std::chrono::milliseconds(1700));
  const std::lock_guard lock(mutex);
  ASSERT_GE(warnings.size(), 2u);
  EXPECT_TRUE(says(warnings[0], {"rank 1 has sent no heartbeat for 0.", "stops after 500 s of silence"}));
  EXPECT_EQ(warnings[1], "rank 1 sends heartbeats again");
}

TEST(Failure, ACleanEndIsNoFailure) {
  for (int round = 0; round < 3; ++round) {
    run_ranks(4, [&](Rendezvous rendezvous, int rank) {
      for (int again = 0; again < 2; ++again) {  // two Comms in turn over one rendezvous
        Comm comm(line(4), rank, rendezvous, {.on_failure = [](const std::string& m, bool) { ADD_FAILURE() << m; }});
        at::Tensor one = at::ones({1});
        comm.all_reduce(one, kOverData).wait();
        EXPECT_EQ(one.item<float>(), 4);
      }
    });
  }
}

}  // namespace
}  // namespace orthant::failure_test
