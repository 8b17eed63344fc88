// HostBoard: all processes of a run on one host see the heartbeats, activities and failures that one of them posts.
#include "launch/host_board.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <set>
#include <thread>

#include "base/clock.h"
#include "launch/process.h"

namespace orthant::host_board_test {
namespace {

constexpr const char* kHost = "a host";

TEST(HostBoard, RanksOfAHostShareWhatEachShows) {
  const Store store = Store::in_process();
  const auto one = HostBoard::join(store, 3, kHost), two = HostBoard::join(store, 3, kHost);
  const int position = one->enter(store, 2, process_identity());
  EXPECT_EQ(two->find(2), position);
  EXPECT_EQ(two->find(1), -1);
  EXPECT_EQ(two->identity(position), process_identity());
  EXPECT_EQ(two->num_ranks(), 1);
  EXPECT_EQ(two->enter(store, 0, process_identity()), 1);
  EXPECT_EQ(two->rank(1), 0);

  const int64_t before = two->heartbeat(position);
  one->beat(position);
  EXPECT_NE(two->heartbeat(position), before);
  for (int step = 0; step < 3; ++step) {
    one->set_activity(position, "step " + std::to_string(step));
    EXPECT_EQ(two->activity(position), "step " + std::to_string(step));
  }
  one->set_activity(position, std::string(10000, 'x'));
  EXPECT_GE(two->activity(position).size(), 400u);
  EXPECT_LE(two->activity(position).size(), 440u);
}

TEST(HostBoard, TheFirstFailureOfAHostHolds) {
  const Store store = Store::in_process();
  const auto one = HostBoard::join(store, 2, kHost), two = HostBoard::join(store, 2, kHost);
  EXPECT_FALSE(two->failure());
  EXPECT_TRUE(one->post_failure("rank 0: disk full"));
  EXPECT_FALSE(two->post_failure("rank 1: no memory"));
  EXPECT_EQ(one->failure(), "rank 0: disk full");
  EXPECT_EQ(two->failure(), "rank 0: disk full");
}

TEST(HostBoard, OneRankOfAHostLeads) {
  const Store store = Store::in_process();
  const auto board = HostBoard::join(store, 3, kHost);
  for (int rank = 0; rank < 3; ++rank) board->enter(store, rank, process_identity());
  EXPECT_TRUE(board->lead(1));
  EXPECT_FALSE(board->lead(0));
  board->enter(store, 1, process_identity());  // a second Watch
  EXPECT_FALSE(board->leave(1));
  EXPECT_FALSE(board->lead(2));
  EXPECT_FALSE(board->leave(1));
  EXPECT_TRUE(board->lead(2));
  EXPECT_FALSE(board->lead(1));
  EXPECT_FALSE(board->leave(2));
  EXPECT_TRUE(board->lead(0));
  EXPECT_TRUE(board->leave(0));
}

// Hosts with the same name: the address that one of them posted leads nowhere on the other.
TEST(HostBoard, AnAddressOfAnotherMachineGivesABoardOfItsOwn) {
  for (const std::string address : {"/proc/999999/fd/3 0123456789abcdef", "/proc/self/fd/0 0123456789abcdef",
                                    "/proc/self/exe 0123456789abcdef", "nonsense", ""}) {
    const Store store = Store::in_process();
    store.set(std::string("board/") + kHost, address);
    const auto board = HostBoard::join(store, 2, kHost);
    EXPECT_EQ(board->num_ranks(), 0) << address;
    EXPECT_EQ(board->enter(store, 1, process_identity()), 0) << address;
  }
}

// A board of another run is at that address now.
TEST(HostBoard, ABoardOfAnotherRunIsRefused) {
  const Store store = Store::in_process(), other = Store::in_process();
  const auto board = HostBoard::join(store, 2, kHost);
  const std::string address = store.get(std::string("board/") + kHost, 1);
  other.set(std::string("board/") + kHost, address.substr(0, address.find(' ')) + " 0123456789abcdef");
  board->enter(store, 0, process_identity());
  EXPECT_EQ(HostBoard::join(other, 2, kHost)->num_ranks(), 0);
  other.set(std::string("board/") + kHost, address);
  EXPECT_EQ(HostBoard::join(other, 2, kHost)->num_ranks(), 1);  // the negative control
}

// A launcher creates a board, but only hosts with ranks have a number.
TEST(HostBoard, HostsWithRanksHaveNumbers) {
  const Store store = Store::in_process();
  const auto a = HostBoard::join(store, 4, "a"), b = HostBoard::join(store, 4, "b"), c = HostBoard::join(store, 4, "c");
  EXPECT_EQ(c->host(), -1);
  b->enter(store, 2, process_identity());
  b->enter(store, 3, process_identity());
  a->enter(store, 0, process_identity());
  EXPECT_EQ(HostBoard::join(store, 4, "a")->enter(store, 1, process_identity()), 1);
  EXPECT_EQ(b->host(), 2);
  EXPECT_EQ(a->host(), 0);
  EXPECT_EQ(c->host(), -1);
}

// Readers never see a mixture of two texts.
TEST(HostBoard, ActivitiesAreReadWhole) {
  const Store store = Store::in_process();
  const auto board = HostBoard::join(store, 1, kHost);
  const int position = board->enter(store, 0, process_identity());
  std::atomic<bool> done = false;
  std::thread writer([&] {
    for (int i = 0; !done; ++i) board->set_activity(position, std::string(400, static_cast<char>('a' + i % 26)));
  });
  std::set<std::string> seen;
  const auto start = Clock::now();
  for (int i = 0; i < 3000 || (seen.size() < 2 && seconds_since(start) < 20); ++i) {
    const std::string text = board->activity(position);
    EXPECT_EQ(text, std::string(text.size(), text.empty() ? ' ' : text[0]));
    EXPECT_TRUE(text.empty() || text.size() == 400) << text.size();
    seen.insert(text);
  }
  done = true;
  writer.join();
  EXPECT_GT(seen.size(), 1u);
}

// A process that is killed leaves its last activity behind.
TEST(HostBoard, TheActivityOfADeadProcessRemains) {
  const Store store = Store::in_process();
  const auto board = HostBoard::join(store, 1, kHost);
  const int position = board->enter(store, 0, process_identity());
  const pid_t child = fork();
  if (child == 0) {
    board->set_activity(position, "step 7");
    raise(SIGKILL);
  }
  ASSERT_GT(child, 0);
  waitpid(child, nullptr, 0);
  EXPECT_EQ(board->activity(position), "step 7");
}

}  // namespace
}  // namespace orthant::host_board_test
