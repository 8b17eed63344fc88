// Refusals for lack of memory offer changes that make the run fit: of ZeRO, of the mesh and of the vocabulary, or
// several together. Every offer is planned again. Control: a limit that nothing can meet.
#include "advice/memory_limit.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "advice/advised_plan.h"
#include "advice/alternatives.h"
#include "base/errors.h"
#include "base/text.h"
#include "tests/support/says.h"

namespace orthant::memory_limit_test {
namespace {

using Words = std::vector<std::string>;

const Words kModel = {"model.num_hidden_layers=8",     "model.hidden_size=512",
                      "model.intermediate_size=1408",  "model.num_attention_heads=8",
                      "model.num_key_value_heads=8",   "model.vocab_size=32000",
                      "training.seq_len=256",          "training.local_batch_size=1",
                      "training.global_batch_size=16", "run.device=cuda"};

Plan plan_of(int ranks, Words more) {
  more.insert(more.begin(), kModel.begin(), kModel.end());
  more.push_back(fmt::format("run.ranks={}", ranks));
  return advised_plan(parse_config("", "run.toml", more), {.ranks = ranks, .vocab_size = 32000});
}

std::string limit(int64_t bytes) {
  return fmt::format("run.memory_gib_per_rank={:.17g}", static_cast<double>(bytes) / 0x1p30);
}

std::string refusal(int ranks, Words words, int64_t bytes) {
  words.push_back(limit(bytes));
  return message_of<ConfigError>([&] { plan_of(ranks, words); });
}

TEST(MemoryLimit, OffersEveryKindOfChange) {
  const Words data = {"parallelism.data_parallel_degree=-1"};
  const Plan plan = plan_of(4, data);
  // Three quarters of the memory suffice for ZeRO, tensor ranks and pipeline ranks.
  const std::string text = refusal(4, data, plan.largest_memory_bytes() * 3 / 4);
  EXPECT_TRUE(says(text, {"changes that fit: ", "parallelism.zero_stage=3", "parallelism.tensor_parallel_degree=2",
                          "parallelism.pipeline_parallel_degree=2"}))
      << text;
  const Words pipeline = {"parallelism.pipeline_parallel_degree=4"};
  const int64_t needed = plan_of(4, pipeline).largest_memory_bytes();
  EXPECT_TRUE(says(refusal(4, pipeline, needed * 9 / 10), {"parallelism.vocabulary_parallel=algorithm_2 ("}));
}

// The offered settings, applied to the run file, give a plan within the limit.
TEST(MemoryLimit, OffersSeveralChangesIfNoneSuffices) {
  for (const int ranks : {4, 8}) {
    const Plan plan = plan_of(ranks, {});
    int several = 0;
    for (const int percent : {50, 45, 40, 35, 30, 25, 20, 15}) {
      const int64_t bytes = plan.largest_memory_bytes() * percent / 100;
      const std::string text = refusal(ranks, {}, bytes);
      const std::string begin = "the least that fits is ";
      const size_t at = text.find(begin);
      if (at == std::string::npos) continue;
      const std::string change = text.substr(at + begin.size(), text.rfind(" (") - at - begin.size());
      Words words = split(change, ' ');
      several += words.size() > 1 ? 1 : 0;
      words.push_back(limit(bytes));
      EXPECT_EQ(message_of<ConfigError>([&] { plan_of(ranks, words); }), "") << text;
    }
    EXPECT_GE(several, 2) << ranks;
  }
  const std::string text = refusal(4, {}, 1 << 20);
  EXPECT_TRUE(says(text, {"no change that was compared fits (the least that was found is ", "use more ranks"})) << text;
}

// A schedule without effect on one pipeline rank has an effect on the two that are offered. The offered plan has it.
TEST(MemoryLimit, OffersThePlanOfTheRunFilesOtherSettings) {
  const Words idle = {"parallelism.pipeline_parallel_schedule=gpipe"};
  const auto pipeline = [](const Plan& plan) {
    const std::vector<Alternative> all = alternatives_to(plan);
    const auto found = std::ranges::find(all, "parallelism.pipeline_parallel_degree=2", &Alternative::change);
    return found == all.end() ? 0 : found->memory_bytes;
  };
  Words two = idle;
  two.emplace_back("parallelism.pipeline_parallel_degree=2");
  EXPECT_EQ(pipeline(plan_of(4, idle)), plan_of(4, two).largest_memory_bytes());
  EXPECT_LT(pipeline(plan_of(4, {})), pipeline(plan_of(4, idle)));  // 1F1B holds less
}

TEST(MemoryLimit, CombinesAsLittleAsPossible) {
  const Plan plan = plan_of(4, {});
  const auto limited_to = [&](int64_t bytes) {
    Config config = plan.config;
    config.run.memory_gib_per_rank = static_cast<double>(bytes) / 0x1p30;
    return make_plan(config, plan.facts);
  };
  const auto all = combined_change(limited_to(plan.largest_memory_bytes()));
  ASSERT_TRUE(all);
  EXPECT_EQ(all->change, "");  // the plan itself
  std::optional<Alternative> least;
  EXPECT_FALSE(combined_change(limited_to(1), &least));
  ASSERT_TRUE(least);
  const auto exact = combined_change(limited_to(least->memory_bytes));
  ASSERT_TRUE(exact);
  EXPECT_EQ(exact->memory_bytes, least->memory_bytes);
}

}  // namespace
}  // namespace orthant::memory_limit_test
