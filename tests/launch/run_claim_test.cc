// A rank that connects to the store of another run fails, and has not written a single key to that store.
#include "launch/run_claim.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <iterator>
#include <thread>

#include "base/errors.h"
#include "launch/c10d_store.h"
#include "launch/rendezvous.h"
#include "launch/watch.h"
#include "tests/support/says.h"

namespace orthant::run_claim_test {
namespace {

constexpr double kSoon_s = 0.2;

const std::string kOurs = "0123456789abcdef", kAnother = "0123456789abcdeF";

Launch rank_of(int rank, int world_size = 2, const std::string& run_id = "") {
  return {.launcher = run_id.empty() ? "environment" : "openmpi",
          .rank = rank,
          .world_size = world_size,
          .local_rank = rank,
          .local_size = world_size,
          .run_id = run_id,
          .address = "localhost",
          .port = 29500};
}

std::string refusal(const Store& store, const Launch& launch, const std::string& text = "seed = 7") {
  return message_of<CommError>([&] { (void)claim_rank(store, launch, text, kSoon_s); });
}

// All keys of the store with their values, sorted.
std::vector<std::string> contents(const Store& store) {
  std::vector<std::string> all;
  for (const auto& key : store.handle().store->listKeys())
    all.push_back(key + " = " + store.handle().store->get_to_str(key));
  std::sort(all.begin(), all.end());
  return all;
}

// A run of two ranks on a store of its own, where rank 0 has published the run's record.
class RunClaim : public testing::Test {
 protected:
  void come(int rank) { claim_rank(store_, rank_of(rank, 2, id_), "seed = 7", kSoon_s); }

  // Expects that the rank is refused for this reason, and that the store is unchanged.
  void expect_refused(const Launch& launch, const std::string& reason, const std::string& text = "seed = 7") {
    const auto before = contents(store_);
    EXPECT_TRUE(says(refusal(store_, launch, text),
                     {fmt::format("rank {}: another run already uses localhost:29500: ", launch.rank), reason,
                      "Choose another MASTER_PORT"}));
    EXPECT_EQ(contents(store_), before);
  }

  const Store store_ = Store::serve(0, 5);
  std::string id_;
};

TEST_F(RunClaim, RanksOfOneRunShareTheirKeys) {
  const Store zero = claim_rank(store_, rank_of(0), "seed = 7", kSoon_s);
  const Store one = claim_rank(store_, rank_of(1), "seed = 7", kSoon_s);
  zero.set("key", "value");
  EXPECT_EQ(one.get("key", kSoon_s), "value");
}

TEST_F(RunClaim, OnceAllRanksHaveComeNobodyElseCan) {
  come(0), come(1);
  expect_refused(rank_of(1), "another process has already claimed its rank 1");
  expect_refused(rank_of(0), "another process has already claimed its rank 0");
}

TEST_F(RunClaim, AnotherNumberOfRanks) {
  come(0);
  expect_refused(rank_of(1, 4), "it has 2 ranks, but this rank was started as one of 4");
  expect_refused(rank_of(3, 4), "it has 2 ranks");
  come(1);
}

TEST_F(RunClaim, AnotherRunFile) {
  come(0);
  expect_refused(rank_of(1), "`seed = 7` on rank 0, but `seed = 8` on rank 1", "seed = 8");
  // Its run file cannot be read: it joins in order to report that.
  EXPECT_NO_THROW(claim_rank(store_, rank_of(1), "", kSoon_s));
}

TEST_F(RunClaim, AnotherJobOfTheLauncher) {
  id_ = "openmpi 27/1";
  come(0);
  expect_refused(rank_of(1, 2, "openmpi 28/1"), "its launcher set another run id");
  expect_refused(rank_of(1), "its launcher set another run id");
  // Within one job, a difference is for check_agreement() to report to all ranks.
  EXPECT_NO_THROW(claim_rank(store_, rank_of(1, 2, id_), "seed = 8", kSoon_s));
}

Launch with_secret(const std::string& secret, Launch launch) {
  launch.secret = secret;
  return launch;
}

TEST_F(RunClaim, AnotherSecret) {
  (void)claim_rank(store_, with_secret(kOurs, rank_of(0)), "seed = 7", kSoon_s);
  expect_refused(with_secret(kAnother, rank_of(1)), "it has another secret than this rank");
  expect_refused(rank_of(1), "it has a secret, but this rank has none");
  expect_refused(with_secret(kAnother, rank_of(0)), "another process has already claimed its rank 0");
  const Store zero = claim_rank(store_, with_secret(kOurs, rank_of(1)), "seed = 7", kSoon_s);
  zero.set("key", "value");
  EXPECT_TRUE(
      says(refusal(store_, with_secret(kOurs, rank_of(1))), {"another process has already claimed its rank 1"}));
}

TEST_F(RunClaim, ARunWithoutASecretRefusesOne) {
  come(0);
  expect_refused(with_secret(kOurs, rank_of(1)), "it has no secret, but this rank has one");
  come(1);
}

TEST_F(RunClaim, ChangedRecordIsRefused) {
  (void)claim_rank(store_, with_secret(kOurs, rank_of(0)), "seed = 7", kSoon_s);
  auto record = parse_run_record(store_.get("orthant/run", kSoon_s));
  record->nonce.back() = record->nonce.back() == '0' ? '1' : '0';
  store_.set("orthant/run", to_text(*record));
  expect_refused(with_secret(kOurs, rank_of(1)), "it has another secret than this rank");
}

// With one secret, the keys of a run are not those of another run.
TEST_F(RunClaim, ValuesOfAnotherRunAreNotAccepted) {
  const Store other_server = Store::serve(0, 5);
  for (const Store& server : {store_, other_server}) {
    (void)claim_rank(server, with_secret(kOurs, rank_of(0)), "seed = 7", kSoon_s);
    claim_rank(server, with_secret(kOurs, rank_of(1)), "seed = 7", kSoon_s).set("key", "value");
  }
  const auto key_names = [](const Store& server) {
    std::vector<std::string> names;
    for (const auto& line : contents(server)) names.push_back(line.substr(0, line.find(" = ")));
    return names;
  };
  const auto ours = key_names(store_), theirs = key_names(other_server);
  ASSERT_EQ(ours.size(), theirs.size());
  std::vector<std::string> common;
  std::set_intersection(ours.begin(), ours.end(), theirs.begin(), theirs.end(), std::back_inserter(common));
  for (const auto& name : common) EXPECT_TRUE(name.size() < 64) << name;  // the record, and c10d's own keys
}

TEST_F(RunClaim, OneOfTwoThatComeAtOnceIsRefused) {
  come(0);
  std::atomic<int> refused = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] { refused += !refusal(store_.clone(), rank_of(1)).empty(); });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(refused, 3);
}

TEST_F(RunClaim, AStoreWithoutARun) {
  store_.set("a/stranger's", "key");
  EXPECT_FALSE(serves_a_run(store_));
  const auto before = contents(store_);
  EXPECT_TRUE(says(refusal(store_, rank_of(1)),
                   {"rank 1: waited 0.2 s for rank 0 of 2 to publish the run", "MASTER_PORT"}));
  EXPECT_EQ(contents(store_), before);
  come(0);
  EXPECT_TRUE(serves_a_run(store_));
}

TEST_F(RunClaim, InvalidRecordIsRefused) {
  store_.set("orthant/run", "\x1b[2J");
  expect_refused(rank_of(1), "another version of Orthant, or by another program");
  EXPECT_FALSE(serves_a_run(store_));
}

// The store of a launcher may hold several runs with different ids. A second run with the same id is refused.
TEST_F(RunClaim, OnTheStoreOfALauncher) {
  const auto launch = [](int rank, const std::string& id) {
    Launch one = rank_of(rank, 2, id);
    one.store_kind = StoreKind::kServedByLauncher;
    return one;
  };
  std::vector<Store> stores;
  for (const std::string id : {"orthant a", "orthant b"}) {
    for (const int rank : {0, 1}) stores.push_back(claim_rank(store_, launch(rank, id), "", kSoon_s));
  }
  stores[0].set("key", "a"), stores[2].set("key", "b");
  EXPECT_EQ(stores[1].get("key", kSoon_s), "a");
  EXPECT_EQ(stores[3].get("key", kSoon_s), "b");
  expect_refused(launch(0, "orthant a"), "another process has already claimed its rank 0");
  expect_refused(launch(1, "orthant a"), "another process has already claimed its rank 1");
}

// The launcher's store outlives a rank that dies. Without this agreement every waiting rank would print an error.
TEST_F(RunClaim, OneWaitingRankReportsWhenRankZeroDoesNotCome) {
  const auto waiting = [](int rank) {
    Launch launch = rank_of(rank, 3, "job 8");
    launch.store_kind = StoreKind::kServedByLauncher;
    return launch;
  };
  EXPECT_TRUE(says(refusal(store_, waiting(1)), {"rank 1: waited 0.2 s for rank 0 of 3"}));
  EXPECT_THROW(claim_rank(store_, waiting(2), "seed = 7", kSoon_s), PeerFailed);
}

TEST_F(RunClaim, AFailureThatTheLauncherReportedIsNotReportedAgain) {
  Launch launch = rank_of(1, 3, "job 9");
  launch.store_kind = StoreKind::kServedByLauncher;
  post_failure(store_.under(run_prefix(launch.run_id)), "rank 0 was killed");
  EXPECT_THROW(claim_rank(store_, launch, "seed = 7", kSoon_s), PeerFailed);
}

// The ranks of torchrun on one store. torchrun keeps it when it starts the ranks again.
class TorchrunClaim : public testing::Test {
 protected:
  static constexpr double kLong_s = 20;

  static Launch launch(int rank) {
    Launch launch = rank_of(rank, 2, "torchrun 5");
    launch.store_kind = StoreKind::kServedByTorchrun;
    return launch;
  }
  // Claims both ranks, rank 1 first by 300 ms. Returns the keys of each.
  std::vector<Store> claim_both() {
    std::vector<Store> keys(2);
    std::thread one([&] { keys[1] = claim_rank(store_.clone(), launch(1), "", kLong_s); });
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    keys[0] = claim_rank(store_, launch(0), "", kLong_s);
    one.join();
    return keys;
  }
  void expect_new_keys_for_both(const std::string& value) {
    const std::vector<Store> keys = claim_both();
    EXPECT_FALSE(keys[0].has("key"));
    keys[0].set("key", value);
    EXPECT_EQ(keys[1].get("key", kSoon_s), value);
    post_failure(keys[1], "rank 1 was killed");
  }

  const Store store_ = Store::serve(0, 5);
};

TEST_F(TorchrunClaim, RestartedRanksShareNewKeys) {
  for (const std::string value : {"first", "second", "third"}) expect_new_keys_for_both(value);
}

// Rank 0 waits for rank 1, which ends before it claims its rank. The new rank 1 then claims it in the old record, and
// must leave that record when the new rank 0 replaces it.
TEST_F(TorchrunClaim, UnansweredClaimIsRepeated) {
  EXPECT_TRUE(says(refusal(store_, launch(0)), {"rank 0: rank 1 of 2 did not connect to the store", "within 0.2 s"}));
  expect_new_keys_for_both("second");
}

TEST_F(TorchrunClaim, AnotherSecret) {
  std::thread zero([&] { (void)refusal(store_.clone(), with_secret(kOurs, launch(0))); });
  EXPECT_TRUE(
      says(message_of<CommError>([&] { (void)claim_rank(store_, with_secret(kAnother, launch(1)), "", kLong_s); }),
           {"rank 1: another run already uses", "it has another secret than this rank"}));
  zero.join();
}

// Another run, whose rank 0 would replace the record.
TEST_F(TorchrunClaim, RankZeroWithAnotherSecretChangesNothing) {
  (void)refusal(store_, with_secret(kOurs, launch(0)));
  const auto before = contents(store_);
  EXPECT_TRUE(says(refusal(store_, with_secret(kAnother, launch(0))),
                   {"rank 0: another run already uses", "it has another secret than this rank"}));
  EXPECT_TRUE(says(refusal(store_, launch(0)), {"it has a secret, but this rank has none"}));
  EXPECT_EQ(contents(store_), before);
  EXPECT_TRUE(says(refusal(store_, with_secret(kOurs, launch(0))), {"rank 1 of 2 did not connect"}));
  EXPECT_NE(contents(store_), before);  // the negative control: a restart of this run
}

TEST_F(TorchrunClaim, AnotherNumberOfHostsIsAnotherStart) {
  Launch four = launch(0);
  four.world_size = 4;
  EXPECT_TRUE(says(refusal(store_, four), {"rank 0: rank 1 of 4 did not connect"}));
  expect_new_keys_for_both("second");
}

TEST_F(TorchrunClaim, OneRankReportsWhenRankZeroDoesNotCome) {
  EXPECT_TRUE(says(refusal(store_, launch(1)), {"rank 1: waited 0.2 s for rank 0 and all other ranks of 2"}));
  EXPECT_THROW(claim_rank(store_, launch(1), "", kSoon_s), PeerFailed);
}

TEST(RunRecord, IsReadAsItWasWritten) {
  const RunRecord record{.nonce = "0123", .world_size = 8, .run_id = "77", .mac = "-", .text = "a = 1\n\nb = 2\n"};
  const auto read = parse_run_record(to_text(record));
  ASSERT_TRUE(read);
  EXPECT_EQ(to_text(*read), to_text(record));
  EXPECT_EQ(read->text, record.text);
  for (const char* bad : {"", "\n", "orthant-run-3 0123 8 77 -", "orthant-run-2 0123 8 77\n",
                          "orthant-run-3 0123 eight 77 -\n", "orthant-run-3 0123 8 77\n"}) {
    EXPECT_FALSE(parse_run_record(bad)) << bad;
  }
}

TEST(RunRecord, TextOfARankIsEscapedBeforeItIsShown) {
  EXPECT_EQ(first_difference("a\n  path = \x1b[2J\n", "a\npath = x\n", 3),
            "`path = \\x1b[2J` on rank 0, but `path = x` on rank 3");
  EXPECT_EQ(first_difference("a\nb", "a\nb", 3), "");
  EXPECT_EQ(first_difference("a", "a\nb", 3), "`(nothing)` on rank 0, but `b` on rank 3");
}

}  // namespace
}  // namespace orthant::run_claim_test
