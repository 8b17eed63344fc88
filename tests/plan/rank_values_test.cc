// Ranks are planned once per class. The plan of each rank must be the one that follows from this rank's own coordinates
// alone, on meshes that no size divides evenly.
#include "plan/rank_values.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>
#include <map>
#include <set>
#include <tuple>

#include "plan/plan.h"
#include "plan/plan_memory.h"
#include "plan/plan_traffic.h"

namespace orthant::rank_values_test {
namespace {

using Words = std::vector<std::string>;

struct Case {
  int ranks;
  Words keys;
};

Plan plan_of(const Case& c) {
  Words words = {"model.hidden_size=96",         "model.intermediate_size=211",
                 "model.num_attention_heads=12", "model.num_key_value_heads=6",
                 "model.num_hidden_layers=6",    "training.seq_len=48",
                 "training.local_batch_size=2",  "training.global_batch_size=23",
                 "parallelism.bucket_mib=0.01",  fmt::format("run.ranks={}", c.ranks)};
  words.insert(words.end(), c.keys.begin(), c.keys.end());
  return make_plan(parse_config("", "run.toml", words), {.ranks = c.ranks, .vocab_size = 257});
}

std::vector<Case> cases() {
  const std::string p = "parallelism.", t = p + "tensor_parallel_", c = p + "context_parallel_",
                    zero = p + "zero_stage=", pipeline = p + "pipeline_parallel_",
                    batch = "training.global_batch_size=";
  const std::string muon = "optimizer.name=muon", tied = "model.tie_word_embeddings=true";
  return {
      {5, {}},
      {5, {zero + "1", "optimizer.offload=true"}},
      {5, {zero + "3", p + "zero_reshard=microbatch", "training.dtype=bfloat16"}},
      {8, {zero + "2", p + "data_parallel_replicate_degree=2"}},
      {6, {t + "degree=3", muon, zero + "1"}},
      {12, {t + "kind=2d", t + "mesh=[2,3,1]", batch + "8", zero + "1"}},
      {8, {t + "kind=2.5d", t + "mesh=[2,2,2]", batch + "12", muon}},
      {12, {c + "ring=3", c + "ulysses=2", "training.seq_len=61"}},
      {8, {c + "ring=4", c + "window=2", "training.seq_len=61", zero + "3"}},
      {6, {c + "ring=3", c + "placement=contiguous", "training.seq_len=61", zero + "1", "training.dtype=bfloat16"}},
      {6, {pipeline + "degree=3", pipeline + "schedule=zb_h1", tied, zero + "1"}},
      {6, {pipeline + "degree=3", pipeline + "schedule=zb_v", zero + "3"}},
      {6, {pipeline + "degree=3", pipeline + "schedule=1f1b", p + "vocabulary_parallel=algorithm_2", zero + "2"}},
      {12, {pipeline + "degree=2", pipeline + "schedule=1f1b", p + "vocabulary_parallel=algorithm_1", t + "degree=3"}},
      {4, {pipeline + "degree=4", pipeline + "schedule=1f1b", "model.num_hidden_layers=8"}},
      {8, {pipeline + "degree=4", pipeline + "schedule=zb_h2", pipeline + "post_validation=true"}},
      {24, {pipeline + "degree=2", t + "degree=2", c + "ring=3", muon, zero + "1", tied}},
      {4, {"optimizer.in_backward=true", batch + "7", "training.local_batch_size=2", muon, zero + "1"}}};
}

// Ranks receive in total the bytes that ranks send. A message between stages has an entry on each side.
TEST(RankValues, RanksReceiveWhatOthersSend) {
  int unequal = 0;
  for (const Case& c : cases()) {
    const Plan plan = plan_of(c);
    std::map<std::pair<std::string, std::string>, Moved> moved;
    for (const CommunicationEntry& entry : plan.communication) {
      const std::string collective = entry.collective == "recv" ? "send" : entry.collective;
      for (int rank = 0; rank < c.ranks; ++rank) {
        const Moved own{plan.bytes_of(entry, rank), plan.received_by(entry, rank)};
        moved[{entry.axis, collective}] += own;
        unequal += own.sent != own.received ? 1 : 0;
      }
    }
    for (const auto& [key, all] : moved) {
      EXPECT_EQ(all.sent, all.received) << key.second << " over " << key.first << ", " << c.ranks << " ranks, "
                                        << fmt::format("{}", fmt::join(c.keys, " "));
    }
  }
  EXPECT_GT(unequal, 100);
}

// Calls and bytes of a rank by kind of message.
using Sent = std::map<std::tuple<std::string, std::string, std::string>, std::pair<int64_t, int64_t>>;
Sent sent_by(const std::vector<CommunicationEntry>& entries, int index) {
  Sent sent;
  const auto at = static_cast<size_t>(index);
  for (const CommunicationEntry& entry : entries) {
    if (entry.calls[at] > 0) sent[{entry.what, entry.collective, entry.axis}] = {entry.calls[at], entry.bytes[at]};
  }
  return sent;
}

TEST(RankValues, OfAClassAreThoseOfEachOfItsRanks) {
  for (const Case& c : cases()) {
    const Plan plan = plan_of(c);
    const ParameterShards held(plan);
    const RankTable table(plan, held);
    ASSERT_EQ(plan.classes.num_ranks(), c.ranks);
    for (int rank = 0; rank < c.ranks; ++rank) {
      const std::string where = fmt::format("{}, rank {}", fmt::join(c.keys, " "), rank);
      const RankValues own = rank_values(plan, rank);
      const RankValues& of_class = table.values()[static_cast<size_t>(table.classes().of(rank))];
      EXPECT_EQ(own.pipeline_rank, of_class.pipeline_rank) << where;
      EXPECT_EQ(own.data_shard.microbatches, of_class.data_shard.microbatches) << where;
      EXPECT_EQ(own.statistics, of_class.statistics) << where;
      EXPECT_TRUE(*own.microbatches == *of_class.microbatches) << where;
      EXPECT_TRUE(*own.owned == *of_class.owned) << where;
      EXPECT_TRUE(*own.matrices == *of_class.matrices) << where;
      EXPECT_EQ(own.held->sizes, of_class.held->sizes) << where;
      const std::vector<GradientBucket> buckets = plan.buckets_of(rank);
      for (size_t i = 0; i < buckets.size(); ++i) {
        EXPECT_EQ(of_class.held->buckets[i].elements, buckets[i].elements) << where;
        const bool has_chunks = plan.shards_optimizer();
        EXPECT_EQ(of_class.held->buckets[i].cuts, has_chunks ? buckets[i].cuts : std::vector<int64_t>()) << where;
      }
      EXPECT_EQ(plan.memory_of(rank), count_memory(plan, {own}).front()) << where;
      EXPECT_EQ(sent_by(plan.communication, plan.classes.of(rank)), sent_by(count_communication(plan, {own}), 0))
          << where;
    }
  }
}

// Control: if one of the values is left out of the key of classes, some rank of some case gets wrong costs.
TEST(RankValues, AreAllNeeded) {
  const auto wrong_ranks = [](const auto& key_of) {
    int wrong = 0;
    for (const Case& c : cases()) {
      const Plan plan = plan_of(c);
      const ParameterShards held(plan);
      const RankTable table(plan, held);
      std::vector<int> labels;
      std::map<std::vector<int64_t>, int> known;
      for (const RankValues& values : table.values()) {
        labels.push_back(known.try_emplace(key_of(values), static_cast<int>(known.size())).first->second);
      }
      const RankClasses coarse = table.classes().joined(labels);
      for (int rank = 0; rank < c.ranks; ++rank) {
        const int other = coarse.first_rank(coarse.of(rank));
        const bool equal =
            plan.memory_of(rank) == plan.memory_of(other) &&
            sent_by(plan.communication, plan.classes.of(rank)) == sent_by(plan.communication, plan.classes.of(other));
        wrong += equal ? 0 : 1;
      }
    }
    return wrong;
  };
  const auto key = [](const RankValues& values, int without) {
    std::vector<int64_t> all = {values.pipeline_rank,
                                values.data_shard.sequences.size(),
                                values.statistics.sent,
                                reinterpret_cast<int64_t>(values.microbatches.get()),
                                reinterpret_cast<int64_t>(values.owned.get()),
                                reinterpret_cast<int64_t>(values.matrices.get())};
    if (without >= 0) all.erase(all.begin() + without);
    return all;
  };
  EXPECT_EQ(wrong_ranks([&](const RankValues& values) { return key(values, -1); }), 0);
  for (int without = 0; without < 6; ++without) {
    EXPECT_GT(wrong_ranks([&](const RankValues& values) { return key(values, without); }), 0) << "value " << without;
  }
}

// No two classes of a plan are equal in everything that tells classes apart.
TEST(RankClassesOfAPlan, Differ) {
  for (const Case& c : cases()) {
    const Plan plan = plan_of(c);
    std::set<std::string> seen;
    for (int index = 0; index < plan.classes.count(); ++index) {
      const MemoryBytes& m = plan.memory[static_cast<size_t>(index)];
      const int rank = plan.classes.first_rank(index);
      std::string text =
          fmt::format("{} {} {} {} {} {} {} {} {} {}", plan.pipeline_rank(rank), plan.data_shard(rank).sequences.size(),
                      m.parameters, m.gradients, m.optimizer, m.activations, m.working, m.host, m.host_copies,
                      m.peak ? to_string(*m.peak) : "-");
      for (const auto& [what, sent] : sent_by(plan.communication, index)) {
        text += fmt::format(" {} {} {}", std::get<0>(what), sent.first, sent.second);
      }
      EXPECT_TRUE(seen.insert(text).second) << fmt::format("{}", fmt::join(c.keys, " "));
    }
  }
}

// A plan of 4,096 ranks takes less than 1 s of processor time, and no list in it is as long as its ranks.
TEST(RankClassesOfAPlan, KeepAPlanOfManyRanksSmall) {
  const std::string p = "parallelism.";
  for (const Words& keys :
       std::vector<Words>{{p + "zero_stage=3", p + "zero_reshard=microbatch"},
                          {p + "tensor_parallel_degree=4", p + "zero_stage=1"},
                          {p + "tensor_parallel_degree=4", p + "pipeline_parallel_degree=4", p + "zero_stage=3"},
                          {p + "context_parallel_ulysses=4", p + "context_parallel_ring=8", p + "zero_stage=2"}}) {
    Words words = {"model.hidden_size=1024",
                   "model.intermediate_size=4096",
                   "model.num_attention_heads=16",
                   "model.num_key_value_heads=8",
                   "model.num_hidden_layers=16",
                   "training.seq_len=1024",
                   "training.local_batch_size=1",
                   "training.global_batch_size=4096",
                   "run.ranks=4096",
                   "model.max_position_embeddings=1024"};
    words.insert(words.end(), keys.begin(), keys.end());
    const Config config = parse_config("", "run.toml", words);
    const std::clock_t begin = std::clock();
    const Plan plan = make_plan(config, {.ranks = 4096, .vocab_size = 32000});
    EXPECT_LT(static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC, 1) << keys.front();
    EXPECT_EQ(plan.classes.num_ranks(), 4096);
    EXPECT_LT(plan.classes.count(), 200) << keys.front();
    EXPECT_LT(plan.communication.size(), 40u) << keys.front();
    EXPECT_EQ(std::ssize(plan.memory), plan.classes.count());
    for (const CommunicationEntry& entry : plan.communication) {
      EXPECT_EQ(std::ssize(entry.bytes), plan.classes.count()) << entry.what;
    }
  }
}

}  // namespace
}  // namespace orthant::rank_values_test
