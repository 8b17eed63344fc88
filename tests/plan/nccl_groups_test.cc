// The groups that a run on GPUs opens: every planned collective has one, and the directions are those of the schedule.
#include "plan/nccl_groups.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "plan/planned_operations.h"

namespace orthant::nccl_groups_test {
namespace {

using Words = std::vector<std::string>;

Plan plan_of(int ranks, const Words& keys) {
  Words words = {"run.device=cuda",
                 "model.hidden_size=128",
                 "model.intermediate_size=256",
                 "model.num_attention_heads=8",
                 "model.num_key_value_heads=4",
                 "model.head_dim=16",
                 "model.num_hidden_layers=8",
                 "training.seq_len=64",
                 "training.local_batch_size=1",
                 "training.global_batch_size=32",
                 "run.ranks=" + std::to_string(ranks)};
  words.insert(words.end(), keys.begin(), keys.end());
  return make_plan(parse_config("", "run.toml", words), {.ranks = ranks, .vocab_size = 260});
}

// The groups of the collectives in the lists of all ranks.
std::set<ChannelGroup> listed_groups(const Plan& plan) {
  std::set<ChannelGroup> listed;
  const RankTable ranks(plan, ParameterShards(plan));
  for (const RankValues& values : ranks.values()) {
    for (const PlannedOperation& operation : planned_operations(plan, values)) {
      const size_t hash = operation.group.find('#');
      const int channel = hash == std::string::npos ? 0 : std::stoi(operation.group.substr(hash + 1));
      listed.emplace(operation.group.substr(0, hash), channel);
    }
  }
  return listed;
}

TEST(NcclGroups, ContainTheGroupsOfAllCollectives) {
  const std::string p = "parallelism.", pipeline = p + "pipeline_parallel_degree=";
  for (const Words& keys :
       std::vector<Words>{{p + "zero_stage=3"},
                          {p + "zero_stage=1", p + "data_parallel_replicate_degree=2"},
                          {pipeline + "4", p + "vocabulary_parallel=naive"},
                          {pipeline + "2", p + "vocabulary_parallel=algorithm_2", p + "zero_stage=1"},
                          {pipeline + "2", "model.tie_word_embeddings=true"},
                          {pipeline + "2", p + "tensor_parallel_degree=2", "optimizer.name=muon"}}) {
    const Plan plan = plan_of(8, keys);
    const NcclGroups all = nccl_groups(plan);
    for (const ChannelGroup& group : listed_groups(plan)) {
      EXPECT_TRUE(all.groups.contains(group)) << keys.front() << ": " << group.first << "#" << group.second;
    }
    EXPECT_NO_THROW(check_nccl_groups(plan));
  }
}

TEST(NcclGroups, DirectionsAreThoseOfTheSchedule) {
  const std::string pipeline = "parallelism.pipeline_parallel_";
  using Directions = std::set<std::pair<int, int>>;
  const Plan chain = plan_of(3, {pipeline + "degree=3", pipeline + "schedule=1f1b", "model.num_hidden_layers=6"});
  EXPECT_EQ(nccl_groups(chain).directions, (Directions{{0, 1}, {1, 0}, {1, 2}, {2, 1}}));
  // Stages follow each other around the ring.
  const Plan ring = plan_of(3, {pipeline + "degree=3", pipeline + "schedule=interleaved_1f1b",
                                "model.num_hidden_layers=6", "training.global_batch_size=6"});
  EXPECT_EQ(nccl_groups(ring).directions, (Directions{{0, 1}, {1, 0}, {1, 2}, {2, 1}, {2, 0}, {0, 2}}));
  EXPECT_EQ(nccl_groups(plan_of(4, {})).directions, Directions());
}

// A middle rank of this mesh needs 17 communicators, of 13 groups and 4 directions, which is below the limit.
TEST(NcclGroups, OfManyAxesAreWithinTheLimit) {
  const std::string p = "parallelism.";
  const Plan plan =
      plan_of(64, {p + "pipeline_parallel_degree=4", p + "vocabulary_parallel=algorithm_2", p + "zero_stage=1",
                   p + "data_parallel_replicate_degree=2", p + "context_parallel_ring=2",
                   p + "tensor_parallel_mesh=[2,2,1]", p + "tensor_parallel_kind=2d"});
  const NcclGroups all = nccl_groups(plan);
  EXPECT_EQ(all.groups.size(), 13u);
  EXPECT_EQ(all.directions.size(), 6u);
  EXPECT_NO_THROW(check_nccl_groups(plan));
}

}  // namespace
}  // namespace orthant::nccl_groups_test
