// The files of a checkpoint: every rank that writes gets parts that tile each of its tensors, from ranks that know it.
// Controls: a part is missing, and a layout in which a writer has all parts itself.
#include "plan/save_plan.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <set>

#include "plan/plan.h"

namespace orthant::save_plan_test {
namespace {

using Words = std::vector<std::string>;

Plan plan_of(int ranks, Words words) {
  const Words model = {"model.hidden_size=32",        "model.intermediate_size=80",
                       "model.num_hidden_layers=4",   "model.num_attention_heads=4",
                       "model.num_key_value_heads=2", "model.vocab_size=203",
                       "training.seq_len=16",         "training.global_batch_size=8",
                       "training.local_batch_size=1", fmt::format("run.ranks={}", ranks)};
  words.insert(words.begin(), model.begin(), model.end());
  return make_plan(parse_config("", "run.toml", words), {.ranks = ranks, .vocab_size = 203});
}

struct Case {
  int ranks;
  Words words;
};

std::vector<Case> cases() {
  const auto p = [](const std::string& key) { return "parallelism." + key; };
  return {
      {1, {}},
      {4, {}},
      {4, {p("zero_stage=1"), "training.dtype=bfloat16"}},
      {4, {p("zero_stage=3"), "optimizer.name=muon"}},
      {4, {p("zero_stage=3"), p("data_parallel_replicate_degree=2")}},
      {4, {p("tensor_parallel_degree=2"), p("zero_stage=2")}},
      {8, {p("tensor_parallel_kind=2d"), p("tensor_parallel_mesh=[2,2,1]"), p("zero_stage=1")}},
      {8, {p("tensor_parallel_kind=2.5d"), p("tensor_parallel_mesh=[2,2,2]")}},
      {8, {p("pipeline_parallel_degree=2"), p("tensor_parallel_degree=2"), p("zero_stage=1")}},
      {4, {p("pipeline_parallel_degree=4"), p("vocabulary_parallel=algorithm_2")}},
      {4, {p("pipeline_parallel_degree=2"), p("pipeline_parallel_schedule=zb_v"), "model.tie_word_embeddings=true"}},
      {6, {p("context_parallel_ring=3"), p("zero_stage=3")}},
      {4, {"model.architecture=gpt2", "model.num_key_value_heads=4", p("tensor_parallel_degree=2")}}};
}

// For each element of the unsharded parameter, the number of parts that have it.
std::vector<int> coverage(const ParameterInfo& parameter, const std::vector<SavedPart>& parts) {
  std::vector<int> count(static_cast<size_t>(parameter.size()));
  for (const SavedPart& part : parts) {
    const int64_t columns = parameter.shape.size() > 1 ? parameter.shape[1] : 1;
    const Range rows = part.shard[0], own = parameter.shape.size() > 1 ? part.shard[1] : Range{0, 1};
    for (int64_t i = part.elements.begin; i < part.elements.end; ++i) {
      const int64_t row = rows.begin + i / own.size(), column = own.begin + i % own.size();
      ++count.at(static_cast<size_t>(row * columns + column));
    }
  }
  return count;
}

TEST(SavePlan, PartsTileEachTensorOfEachWriter) {
  for (const auto& [ranks, words] : cases()) {
    const Plan plan = plan_of(ranks, words);
    const SaveRoutes routes(plan);
    const std::string name = fmt::format("{} ranks {}", ranks, fmt::join(words, " "));
    for (size_t p = 0; p < plan.parameters.size(); ++p) {
      if (!plan.parameters[p].copy_of.empty()) continue;
      for (const SavedKind kind : {SavedKind::values, SavedKind::state, SavedKind::masters}) {
        for (int writer = 0; writer < ranks; ++writer) {
          std::vector<SavedPart> parts = routes.parts_for(writer, kind, p);
          const std::vector<int> once(static_cast<size_t>(plan.parameters[p].size()), 1);
          EXPECT_EQ(coverage(plan.parameters[p], parts), once) << name << ", " << plan.parameters[p].name;
          std::set<int> senders;
          for (const SavedPart& part : parts) {
            EXPECT_TRUE(senders.insert(part.rank).second) << "one message from each rank";
            EXPECT_TRUE(routes.has_part_for(writer, kind, p, part.rank)) << name << ", " << plan.parameters[p].name;
            if (!routes.only_owned(kind)) continue;
            const Range own = plan.owned_parts(part.rank)[p];
            EXPECT_EQ(part.elements, own) << name << ", rank " << part.rank;
          }
          // A rank that is not among the senders has nothing for the writer.
          for (int rank = 0; rank < ranks; ++rank) {
            if (senders.contains(rank) || !routes.has_part_for(writer, kind, p, rank)) continue;
            EXPECT_TRUE(routes.only_owned(kind) || plan.parameters_of(rank)[p].shard_size() == 0) << name;
            const int64_t owned = routes.only_owned(kind) ? plan.owned_parts(rank)[p].size() : 0;
            EXPECT_EQ(owned, 0) << name << ", rank " << rank;
          }
          parts.pop_back();
          EXPECT_NE(coverage(plan.parameters[p], parts), once) << "a missing part is noticed";
        }
      }
    }
  }
}

TEST(SavePlan, ReplicasWriteWhatTheyHave) {
  const Plan plan = plan_of(4, {});
  for (int writer = 0; writer < 4; ++writer) {
    for (const SavedPart& part : SaveRoutes(plan).parts_for(writer, SavedKind::state, 0)) EXPECT_EQ(part.rank, writer);
  }
}

// Files, writers and rounds keep their limits, and every tensor is in one file.
TEST(SavePlan, DividesFilesAmongWriters) {
  const Plan plan = plan_of(8, {"parallelism.pipeline_parallel_degree=2", "training.dtype=bfloat16"});
  const SavePlan one = plan_files(plan);
  ASSERT_EQ(one.files.size(), 2u);
  EXPECT_EQ(one.files[0].name, "model.safetensors");
  EXPECT_EQ(one.files[1].name, "orthant/optimizer.safetensors");
  EXPECT_EQ(one.rounds, 1);
  EXPECT_EQ(one.memory_bytes, one.largest_round_bytes);
  EXPECT_EQ(plan_files(plan_of(4, {})).memory_bytes, 0) << "replicas write from their own state";
  for (const int64_t writer_bytes : {1, 20'000, 100'000}) {
    const SaveLimits limits{.file_bytes = 20'000, .writer_bytes = writer_bytes, .round_bytes = 30'000};
    const SavePlan files = plan_files(plan, limits);
    std::set<std::string> names, tensors;
    std::set<int> writers;
    std::map<std::pair<int, int>, std::pair<int64_t, int>> rounds;  // bytes and tensors of a writer's round
    for (const SavedFile& file : files.files) {
      EXPECT_TRUE(names.insert(file.name).second) << file.name;
      writers.insert(file.writer);
      int64_t bytes = 0;
      for (const SavedTensor& tensor : file.tensors) {
        EXPECT_TRUE(tensors.insert(tensor.stored.name).second) << tensor.stored.name;
        bytes += tensor.bytes;
        auto& [of_round, count] = rounds[{file.writer, tensor.round}];
        of_round += tensor.bytes, ++count;
      }
      const bool has_limit = file.name.starts_with("model") && file.tensors.size() > 1;
      EXPECT_TRUE(!has_limit || bytes <= 20'000) << file.name;
    }
    for (const auto& [round, filled] : rounds) EXPECT_TRUE(filled.first <= 30'000 || filled.second == 1);
    EXPECT_EQ(tensors.size(), 4 * plan.parameters.size());  // values, two states, masters
    EXPECT_EQ(writers.size(), writer_bytes == 1 ? 8u : writer_bytes == 20'000 ? 8u : 7u);
  }
  const SavePlan at_once = plan_files(
      plan_of(8, {"parallelism.pipeline_parallel_degree=2", "training.dtype=bfloat16", "checkpoint.async_mode=async"}),
      {.writer_bytes = 1});
  EXPECT_EQ(at_once.rounds, 1);
  EXPECT_LT(at_once.largest_round_bytes, 3 * one.largest_round_bytes / 8) << "an eighth each, as far as tensors allow";
}

}  // namespace
}  // namespace orthant::save_plan_test
