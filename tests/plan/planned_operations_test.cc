// The lists of operations of all ranks match, for every schedule with every placement of the vocabulary on several
// meshes. A list with one mistake is found, and the message names the rank, the Action, the axis and the law.
#include "plan/planned_operations.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <numeric>
#include <optional>
#include <random>
#include <set>

#include "base/errors.h"
#include "parallel/pipeline/plan.h"
#include "plan/plan.h"
#include "tests/support/says.h"

namespace orthant::planned_operations_test {
namespace {

using Words = std::vector<std::string>;

Plan plan_of(int ranks, const Words& keys) {
  Words words = {"model.hidden_size=32",          "model.intermediate_size=64",
                 "model.num_attention_heads=8",   "model.num_key_value_heads=4",
                 "model.num_hidden_layers=16",    "training.seq_len=32",
                 "training.local_batch_size=1",   "parallelism.bucket_mib=0.01",
                 "training.global_batch_size=16", fmt::format("run.ranks={}", ranks)};
  words.insert(words.end(), keys.begin(), keys.end());
  return make_plan(parse_config("", "run.toml", words), {.ranks = ranks, .vocab_size = 260});
}

OperationLists lists_of(const Plan& plan) {
  const RankTable ranks(plan, ParameterShards(plan));
  OperationLists all{.classes = ranks.classes()};
  for (const RankValues& values : ranks.values()) all.lists.push_back(planned_operations(plan, values));
  return all;
}

// The same lists, with a class for each rank, so that one rank can be changed alone.
OperationLists one_class_per_rank(const OperationLists& all) {
  std::vector<int> labels(static_cast<size_t>(all.classes.num_ranks()));
  std::iota(labels.begin(), labels.end(), 0);
  OperationLists single{.classes = RankClasses(labels)};
  for (const int rank : labels) single.lists.push_back(all.lists[static_cast<size_t>(all.classes.of(rank))]);
  return single;
}

// Meshes of 8 pipeline, data and other ranks.
std::vector<Words> meshes() {
  const std::string p = "parallelism.", pipeline = p + "pipeline_parallel_degree=";
  return {{pipeline + "4"},
          {pipeline + "2", p + "zero_stage=1"},
          {pipeline + "2", p + "zero_stage=3"},
          {pipeline + "2", p + "zero_stage=2", p + "data_parallel_replicate_degree=2"},
          {pipeline + "2", p + "tensor_parallel_degree=2"},
          {pipeline + "2", p + "context_parallel_ring=2", "model.tie_word_embeddings=true"},
          {pipeline + "2", "training.global_batch_size=13", "training.local_batch_size=2"}};
}

TEST(PlannedOperations, MatchForEverySchedulePlacementAndMesh) {
  int plans = 0;
  size_t operations = 0;
  for (const auto& schedule : pipeline_schedules()) {
    for (const std::string vocabulary : {"none", "naive", "algorithm_1", "algorithm_2"}) {
      for (Words keys : meshes()) {
        keys.push_back(fmt::format("parallelism.pipeline_parallel_schedule={}", schedule.name));
        keys.push_back(fmt::format("parallelism.vocabulary_parallel={}", vocabulary));
        std::optional<Plan> plan;
        try {
          plan = plan_of(8, keys);
        } catch (const ConfigError&) {  // a schedule that does not permit the mesh or the vocabulary
          continue;
        }
        ++plans;
        EXPECT_NO_THROW(check_operations(*plan)) << fmt::format("{}", fmt::join(keys, " "));
        for (const auto& list : lists_of(*plan).lists) operations += list.size();
      }
    }
  }
  EXPECT_GT(plans, 150);
  EXPECT_GT(operations, 10000u);
}

TEST(PlannedOperations, AreThoseThatThePlanCounts) {
  // Without axes within blocks, the lists contain every call that the plan counts.
  const std::string p = "parallelism.";
  for (const Words& keys :
       std::vector<Words>{{p + "pipeline_parallel_degree=4", "model.tie_word_embeddings=true"},
                          {p + "zero_stage=3", "optimizer.name=muon"},
                          {p + "zero_stage=2", p + "data_parallel_replicate_degree=4"},
                          {p + "pipeline_parallel_degree=2", p + "zero_stage=1", p + "pipeline_parallel_schedule=zb_v"},
                          {p + "pipeline_parallel_degree=2", p + "vocabulary_parallel=naive"},
                          {p + "pipeline_parallel_degree=4", p + "vocabulary_parallel=algorithm_2"},
                          {p + "pipeline_parallel_degree=4", p + "pipeline_parallel_schedule=zb_h2",
                           p + "pipeline_parallel_post_validation=true"}}) {
    const Plan plan = plan_of(8, keys);
    const OperationLists all = lists_of(plan);
    for (int rank = 0; rank < 8; ++rank) {
      std::map<std::pair<std::string, std::string>, int64_t> listed, counted;
      for (const PlannedOperation& operation : all.lists[static_cast<size_t>(all.classes.of(rank))])
        ++listed[{operation.group.substr(0, operation.group.find('#')), operation.kind}];
      for (const CommunicationEntry& entry : plan.communication)
        if (plan.calls_of(entry, rank) > 0) counted[{entry.axis, entry.collective}] += plan.calls_of(entry, rank);
      EXPECT_EQ(listed, counted) << fmt::format("rank {}, {}", rank, fmt::join(keys, " "));
    }
  }
}

// A change of one operation of a list. Returns false if the list has no such operation at the index.
struct Mutant {
  const char* name;
  bool (*change)(std::vector<PlannedOperation>& list, size_t at);
};

bool drop(std::vector<PlannedOperation>& list, size_t at) {
  list.erase(list.begin() + static_cast<std::ptrdiff_t>(at));
  return true;
}

bool swap_with_next(std::vector<PlannedOperation>& list, size_t at) {
  for (size_t next = at + 1; next < list.size(); ++next) {
    const PlannedOperation &one = list[at], &other = list[next];
    const bool same_channel =
        one.peer >= 0 ? one.peer == other.peer && one.kind == other.kind : other.peer < 0 && one.group == other.group;
    if (!same_channel) continue;
    // Two equal collectives may change places. Messages of different Actions may not.
    if (one.peer < 0 && one.kind == other.kind && one.bytes == other.bytes) return false;
    std::swap(list[at], list[next]);
    return true;
  }
  return false;
}

bool change_bytes(std::vector<PlannedOperation>& list, size_t at) {
  if (list[at].bytes < 0) return false;
  list[at].bytes += 4;
  return true;
}

bool change_member(std::vector<PlannedOperation>& list, size_t at) {
  if (list[at].peer >= 0) {
    list[at].peer += 1;
  } else {
    list[at].group += "+replica";
  }
  return true;
}

TEST(PlannedOperations, EveryMistakeIsFoundAndNamed) {
  constexpr Mutant kMutants[] = {
      {"drop", drop}, {"swap", swap_with_next}, {"bytes", change_bytes}, {"member", change_member}};
  const std::string p = "parallelism.";
  std::mt19937 draw(1);
  std::map<std::string, int> found;
  for (const Words& keys : std::vector<Words>{
           {p + "pipeline_parallel_degree=4", p + "zero_stage=3"},
           {p + "pipeline_parallel_degree=2", p + "vocabulary_parallel=algorithm_1", p + "bucket_mib=0.02"}}) {
    const Plan plan = plan_of(8, keys);
    const OperationLists good = one_class_per_rank(lists_of(plan));
    ASSERT_TRUE(operation_problems(plan.mesh, good).empty());
    for (const Mutant& mutant : kMutants) {
      for (int i = 0; i < 50; ++i) {
        OperationLists bad = good;
        const auto rank = static_cast<size_t>(draw() % 8);
        const auto at = static_cast<size_t>(draw() % bad.lists[rank].size());
        const PlannedOperation before = bad.lists[rank][at];
        if (!mutant.change(bad.lists[rank], at)) continue;
        const std::vector<std::string> problems = operation_problems(plan.mesh, bad);
        const std::string where = fmt::format("{} of {} {} on rank {}", mutant.name, before.kind, before.group, rank);
        ASSERT_FALSE(problems.empty()) << where;
        const std::string all = fmt::format("{}", fmt::join(problems, "\n"));
        EXPECT_TRUE(says(all, {fmt::format("rank {}", rank), before.group.substr(0, before.group.find_first_of("#+"))}))
            << where << "\n"
            << all;
        EXPECT_TRUE(says(all, {" must "})) << where;
        // If several collectives are equal, the message names the first that differs or is missing at the end. Of two
        // messages in the wrong order, it names one on each side.
        const bool is_exact = mutant.change == change_bytes || mutant.change == change_member || before.peer >= 0;
        const std::string action = " in " + to_string(before.action),
                          other = " in " + to_string(is_message(before.action) ? matching_message(before.action)
                                                                               : before.action);
        EXPECT_TRUE(!is_exact || says(all, {action}) || says(all, {other})) << where << "\n" << all;
        ++found[mutant.name];
      }
    }
  }
  for (const Mutant& mutant : kMutants) EXPECT_GT(found[mutant.name], 20) << mutant.name;
}

TEST(PlannedOperations, DeadlockAndUnequalBlocksAreFound) {
  Plan plan = plan_of(8, {"parallelism.pipeline_parallel_degree=2", "parallelism.context_parallel_ring=2"});
  // On the last rank all forwards now come before all backwards, but the first rank waits for an early backward.
  std::ranges::stable_sort(plan.schedule.rows[1], {}, [](const Action& action) {
    return action.kind == ActionKind::B || action.kind == ActionKind::SEND_B;
  });
  EXPECT_TRUE(says(message_of<LogicError>([&] { check_operations(plan); }),
                   {"pipeline rank 0: 0", "waits forever for 1", "no ranks may wait for each other in a cycle"}));

  const RankTable ranks(plan, ParameterShards(plan));
  std::vector<int> labels(8);
  std::vector<RankValues> by_rank;
  for (int rank = 0; rank < 8; ++rank) {
    labels[static_cast<size_t>(rank)] = rank;
    by_rank.push_back(ranks.values()[static_cast<size_t>(ranks.classes().of(rank))]);
  }
  EXPECT_TRUE(block_problems(plan.mesh, RankClasses(labels), by_rank).empty());
  by_rank[2].data_shard.microbatches[1] = {1, 1};
  const auto problems = block_problems(plan.mesh, RankClasses(labels), by_rank);
  ASSERT_FALSE(problems.empty());
  EXPECT_TRUE(says(problems.front(), {"microbatch 1 over ring", "rank 2", "1 sequence", "0 sequences"}));
}

// Bytes of the tensors that carry the step statistics: in the sum after the row, and along the pipeline with
// post-validation.
std::set<int64_t> statistics_bytes(const Plan& plan) {
  const std::string group = plan.mesh.joined_name(statistics_axes(plan));
  std::set<int64_t> bytes;
  for (const auto& list : lists_of(plan).lists) {
    for (const PlannedOperation& operation : list) {
      const bool is_sum = operation.action.kind == ActionKind::STEP && operation.kind.starts_with("all_reduce") &&
                          operation.group == group;
      const bool is_passed_on = operation.action.kind == ActionKind::FINALIZE && operation.peer >= 0;
      if (is_sum || is_passed_on) bytes.insert(operation.bytes);
    }
  }
  return bytes;
}

TEST(PlannedOperations, OfStepStatisticsHaveTheSameBytesOnAnyNumberOfRanks) {
  const std::string p = "parallelism.", pipeline = p + "pipeline_parallel_";
  std::set<int64_t> bytes;
  for (const int ranks : {16, 1024, 4096}) {
    for (const char* validates_after : {"false", "true"}) {
      const Plan plan = plan_of(
          ranks, {pipeline + "degree=4", pipeline + "schedule=zb_h2", pipeline + "post_validation=" + validates_after,
                  p + "tensor_parallel_degree=4", fmt::format("training.global_batch_size={}", ranks)});
      const std::set<int64_t> own = statistics_bytes(plan);
      EXPECT_EQ(own.size(), 1u);
      bytes.insert(own.begin(), own.end());
    }
  }
  EXPECT_EQ(bytes.size(), 1u) << fmt::format("{}", fmt::join(bytes, ", "));
}

TEST(PlannedOperations, OfThousandsOfRanksAreCheckedWithinASecond) {
  const Plan plan = plan_of(4096, {"parallelism.pipeline_parallel_degree=16", "parallelism.tensor_parallel_degree=4",
                                   "parallelism.zero_stage=1", "training.global_batch_size=1024"});
  const auto start = std::chrono::steady_clock::now();
  check_operations(plan);
  const auto time = std::chrono::steady_clock::now() - start;
  EXPECT_LT(time, std::chrono::seconds(1));
  fmt::print("checked in {} ms\n", std::chrono::duration_cast<std::chrono::milliseconds>(time).count());
}

}  // namespace
}  // namespace orthant::planned_operations_test
