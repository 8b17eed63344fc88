// Any program that reaches the store of a run can write to it. Therefore text from the store is escaped and shortened
// before it is printed.
#include <gtest/gtest.h>

#include <thread>

#include "base/errors.h"
#include "comm/thread_ranks.h"
#include "launch/host_board.h"
#include "launch/process.h"
#include "launch/rendezvous.h"
#include "launch/watch.h"
#include "tests/support/says.h"

namespace orthant::hostile_text_test {
namespace {

const std::string kHostile = "\x1b]0;title\x07 \x1b[2J\xff done";
const std::string kEscaped = "\\x1b]0;title\\x07 \\x1b[2J\\xff done";

// The error of rank 1 when it joins this store.
std::string start_of_rank_1(const Store& store) {
  return message_of<CommError>([&] { Watch(store, "setup", 1, 2, 5, {}); });
}

TEST(HostileText, FailureBeforeStartIsEscaped) {
  const Store store = Store::in_process();
  ASSERT_TRUE(post_failure(store, kHostile));
  EXPECT_EQ(start_of_rank_1(store), kEscaped);
}

TEST(HostileText, FailureDuringRunIsEscaped) {
  const Store store = Store::in_process();
  std::string reported;
  {
    std::mutex mutex;
    std::condition_variable changed;
    WatchOptions options{.period_s = 0.02};
    options.on_failure = [&](const std::string& message, bool) {
      const std::lock_guard lock(mutex);
      reported = message;
      changed.notify_all();
    };
    std::thread other([&] { Watch(store, "run", 1, 2, 5, {}); });
    Watch watch(store, "run", 0, 2, 5, options);
    other.join();
    post_failure(store, kHostile + std::string(1 << 20, 'x'));
    std::unique_lock lock(mutex);
    changed.wait_for(lock, std::chrono::seconds(10), [&] { return !reported.empty(); });
  }
  EXPECT_TRUE(says(reported, {kEscaped, "bytes omitted"}));
  EXPECT_LT(reported.size(), 5000u);
}

TEST(HostileText, ActivityIsEscaped) {
  const Store store = Store::in_process();
  const auto board = HostBoard::join(store, 2);
  board->set_activity(board->enter(store, 1, process_identity()), kHostile + std::string(10000, 'x'));
  const std::string shown = last_activity(*board, 1);
  EXPECT_TRUE(says(shown, {"last reported activity: " + kEscaped, "bytes omitted"}));
  EXPECT_LT(shown.size(), 500u);
}

TEST(HostileText, AgreementIsEscaped) {
  run_ranks(2, [&](Rendezvous rendezvous, int rank) {
    if (rank == 1) {
      end_roll_call(rendezvous.store.under("agree/0"), kHostile);
      return;
    }
    EXPECT_TRUE(says(message_of<ConfigError>([&] { check_agreement(rendezvous, "x"); }), {kEscaped}));
  });
}

}  // namespace
}  // namespace orthant::hostile_text_test
