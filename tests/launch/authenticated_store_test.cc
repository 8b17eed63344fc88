// A program that reaches the port of a store, but has no secret, changes nothing that the ranks believe. The attacks on
// a run are carried out on a run without a secret, too, where they succeed.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>

#include "base/errors.h"
#include "launch/c10d_store.h"
#include "launch/host_board.h"
#include "launch/launch.h"
#include "launch/process.h"
#include "launch/roll_call.h"
#include "launch/run_claim.h"
#include "launch/secret.h"
#include "launch/store.h"
#include "launch/watch.h"
#include "tests/support/says.h"

namespace orthant::authenticated_store_test {
namespace {

constexpr double kSoon_s = 0.2;
const std::string kOurs = "0123456789abcdef", kAnother = "0123456789abcdeF";

// A store over TCP, and two connections to it: that of a rank, and that of a program that reaches its port.
class AuthenticatedStore : public testing::Test {
 protected:
  const Store server_ = Store::serve(0, 5);
  const Store rank_ = server_.authenticated(kOurs);
  const Store stranger_ = Store::join("127.0.0.1", server_.port(), 5);

  // The name under which the rank's connection has stored a key.
  std::string set_and_find_name(const std::string& key, const std::string& value) const {
    const std::vector<std::string> before = stranger_.handle().store->listKeys();
    rank_.set(key, value);
    (void)rank_.get(key, kSoon_s);  // the store answers this request after it has set the key
    for (const auto& name : stranger_.handle().store->listKeys()) {
      if (std::find(before.begin(), before.end(), name) == before.end()) return name.substr(name.find_last_of('/') + 1);
    }
    return "";
  }
  void overwrite(const std::string& name, const std::string& value) const {
    stranger_.set(name, value);
    ASSERT_EQ(stranger_.get(name, kSoon_s), value);
  }
};

TEST_F(AuthenticatedStore, RanksWithTheSecretShareValues) {
  const Store other = stranger_.clone().authenticated(kOurs);
  rank_.set("key", "value");
  rank_.set("empty", "");
  EXPECT_EQ(other.get("key", kSoon_s), "value");
  EXPECT_EQ(other.get_all({"key", "empty"}), (std::vector<std::string>{"value", ""}));
  EXPECT_TRUE(other.has("key"));
  EXPECT_FALSE(other.has("none"));
  EXPECT_EQ(rank_.set_if_new("new", "first"), "first");
  EXPECT_EQ(other.set_if_new("new", "second"), "first");
  EXPECT_EQ(rank_.add("count", 2) + other.add("count", 3), 2 + 5);
  rank_.under("a").set("key", "under a");
  EXPECT_EQ(other.clone().under("a").get("key", kSoon_s), "under a");
  EXPECT_TRUE(says(message_of<CommError>([&] { (void)other.get("none", kSoon_s); }), {"does not answer"}));
}

TEST_F(AuthenticatedStore, AnotherSecretSharesNothing) {
  const Store other = server_.authenticated(kAnother);
  rank_.set("key", "value");
  EXPECT_FALSE(other.has("key"));
  other.set("key", "other");
  EXPECT_EQ(rank_.get("key", kSoon_s), "value");
}

TEST_F(AuthenticatedStore, EmptySecretIsTheSameStore) {
  server_.authenticated("").set("key", "value");
  EXPECT_EQ(stranger_.get("key", kSoon_s), "value");
}

TEST_F(AuthenticatedStore, ChangedValueIsRefused) {
  const std::string name = set_and_find_name("address", "10.0.0.1");
  EXPECT_EQ(name.size(), 64u);
  overwrite(name, "10.6.6.6");
  const auto asked = [&] { (void)rank_.get("address", kSoon_s); };
  EXPECT_TRUE(says(message_of<ForgedValue>(asked),
                   {"without the secret of this run has changed the value of \"address\"", "MASTER_PORT", "firewall"}));
  EXPECT_THROW(rank_.get_all({"address"}), ForgedValue);
  EXPECT_THROW(rank_.set_if_new("address", "10.0.0.2"), ForgedValue);
}

TEST_F(AuthenticatedStore, ValueOfAnotherKeyIsRefused) {
  const std::string a = set_and_find_name("a", "value of a"), b = set_and_find_name("b", "value of b");
  overwrite(b, stranger_.get(a, kSoon_s));
  EXPECT_EQ(rank_.get("a", kSoon_s), "value of a");
  EXPECT_THROW(rank_.get("b", kSoon_s), ForgedValue);
}

TEST_F(AuthenticatedStore, AForgedAnswerEndsARollCall) {
  overwrite(set_and_find_name("answer", "+the answer"), "+another answer");
  EXPECT_THROW(call_roll({.store = rank_, .rank = 1, .world_size = 2, .timeout_s = 5}), ForgedValue);
}

Launch rank_of(int rank, const std::string& secret) {
  return {.launcher = "environment",
          .rank = rank,
          .world_size = 2,
          .local_rank = rank,
          .local_size = 2,
          .address = "localhost",
          .port = 29500,
          .secret = secret};
}

// A program that reaches the port of a run reads its record, and posts a failure of the run wherever its keys may be.
void post_failures(const Store& stranger) {
  const Store run = stranger.under("orthant");
  const auto record = parse_run_record(run.get("run", kSoon_s));
  ASSERT_TRUE(record);
  for (const Store& keys : {stranger, run, run.under(record->nonce), run.under(record->nonce).authenticated(kAnother)})
    post_failure(keys, "a stranger's failure");
}

// Overwrites each value of the run. The heartbeats among them stay so, because the ranks post the next one after 10 s.
void overwrite_values(const Store& stranger) {
  constexpr size_t kDigits = 64;
  for (const auto& name : stranger.handle().store->listKeys()) {
    if (name.size() >= kDigits) stranger.set(name, "10.6.6.6");
  }
}

// Two ranks on two hosts watch each other during the attack. Returns the failures that they detected.
std::vector<std::string> failures_under(const std::string& secret, void (*attack)(const Store& stranger)) {
  const Store server = Store::serve(0, 5);
  std::mutex mutex;
  std::vector<std::string> failures;
  std::atomic<int> watching = 0;
  const auto run = [&](int rank) {
    const Store store = claim_rank(server.clone(), rank_of(rank, secret), "seed = 7", 5);
    Watch watch(store, "comm/0", rank, 2, 5,
                {.period_s = 0.05,
                 .heartbeat = {.period_s = 10},
                 .board = HostBoard::join(store, 2, fmt::format("host {}", rank)),
                 .on_failure = [&](const std::string& message, bool) {
                   const std::lock_guard lock(mutex);
                   failures.push_back(message);
                 }});
    ++watching;
    while (watching < 3) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::this_thread::sleep_for(std::chrono::milliseconds(500));  // ten periods
    watch.leave(false);
  };
  std::thread one(run, 1), zero(run, 0);
  while (watching < 2) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  std::this_thread::sleep_for(std::chrono::milliseconds(200));  // both have posted a heartbeat
  attack(Store::join("127.0.0.1", server.port(), 5));
  ++watching;
  one.join(), zero.join();
  return failures;
}

TEST(Stranger, DoesNotEndARunWithASecret) {
  EXPECT_EQ(failures_under(kOurs, post_failures), std::vector<std::string>{});
  EXPECT_EQ(failures_under("", post_failures), std::vector<std::string>(2, "a stranger's failure"));
}

TEST(Stranger, WhoChangesValuesIsReported) {
  const auto failures = failures_under(kOurs, overwrite_values);
  EXPECT_EQ(failures.size(), 2u);
  for (const auto& failure : failures) EXPECT_TRUE(says(failure, {"without the secret of this run has changed"}));
}

// Adds 1 to each counter of the store, which are the values without a MAC. Returns the number of counters.
int raise_counters(const Store& stranger) {
  constexpr size_t kDigits = 64, kMacBytes = 32;
  int count = 0;
  for (const auto& name : stranger.handle().store->listKeys()) {
    if (name.size() < kDigits || stranger.get(name, kSoon_s).size() >= kMacBytes) continue;
    stranger.add(name, 1);
    ++count;
  }
  return count;
}

// A host that does not exist would be silent, and end the run.
TEST(Stranger, CannotAddAHost) {
  const Store server = Store::serve(0, 5), stranger = Store::join("127.0.0.1", server.port(), 5);
  std::vector<Store> stores;
  std::vector<std::shared_ptr<HostBoard>> boards;
  for (const int rank : {0, 1}) {
    stores.push_back(claim_rank(server.clone(), rank_of(rank, kOurs), "seed = 7", 5));
    boards.push_back(HostBoard::join(stores.back(), 2, fmt::format("host {}", rank)));
    boards.back()->enter(stores.back(), rank, process_identity());
    (void)raise_counters(stranger);
  }
  std::mutex mutex;
  std::vector<std::string> failures;
  const auto run = [&](size_t rank) {
    Watch watch(stores[rank], "comm/0", static_cast<int>(rank), 2, 5,
                {.period_s = 0.05,
                 .heartbeat = {.period_s = 0.05, .timeout_s = 0.5},
                 .board = boards[rank],
                 .on_failure = [&](const std::string& message, bool) {
                   const std::lock_guard lock(mutex);
                   failures.push_back(message);
                 }});
    std::this_thread::sleep_for(std::chrono::milliseconds(1200));
    watch.leave(false);
  };
  std::thread one(run, 1), zero(run, 0);
  one.join(), zero.join();
  EXPECT_EQ(failures, std::vector<std::string>{});
  // The negative control: there are counters by now, which a stranger finds and raises.
  stores[0].add("count", 1);
  EXPECT_GE(raise_counters(stranger), 1);
  EXPECT_EQ(stores[0].add("count", 0), 2);
}

TEST(Stranger, CannotClaimARank) {
  for (const std::string& secret : {kOurs, std::string()}) {
    const Store server = Store::serve(0, 5);
    (void)claim_rank(server, rank_of(0, secret), "", kSoon_s);
    const Store run = Store::join("127.0.0.1", server.port(), 5).under("orthant");
    const auto record = parse_run_record(run.get("run", kSoon_s));
    ASSERT_TRUE(record);
    run.under(record->nonce).set_if_new("claimed/1", "a stranger");
    const std::string refusal =
        message_of<CommError>([&] { (void)claim_rank(server, rank_of(1, secret), "", kSoon_s); });
    if (secret.empty()) {
      EXPECT_TRUE(says(refusal, {"another process has already claimed its rank 1"}));
    } else {
      EXPECT_EQ(refusal, "");
    }
  }
}

}  // namespace
}  // namespace orthant::authenticated_store_test
