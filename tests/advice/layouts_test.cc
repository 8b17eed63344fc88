// The table of layouts: each is what a run file with this layout plans, refusals are named, and only layouts that fit
// are recommended.
#include "advice/layouts.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "advice/advised_plan.h"
#include "base/errors.h"
#include "tests/support/says.h"

namespace orthant::layouts_test {
namespace {

using Words = std::vector<std::string>;

Plan plan_of(int ranks, Words words) {
  words.insert(words.begin(), {"model.num_hidden_layers=4", "training.global_batch_size=16", "training.seq_len=64"});
  return advised_plan(parse_config("", "run.toml", words), {.ranks = ranks, .vocab_size = 257});
}

const Alternative& named(const std::vector<Alternative>& layouts, const std::string& name) {
  const auto found = std::ranges::find(layouts, name, &Alternative::change);
  if (found == layouts.end()) throw LogicError("no such layout: " + name);
  return *found;
}

bool offers(const std::vector<Alternative>& layouts, const std::string& name) {
  return std::ranges::count(layouts, name, &Alternative::change) > 0;
}

TEST(Layouts, HaveTheCostsOfTheirOwnPlans) {
  const std::string degree = "parallelism.tensor_parallel_degree=4";
  const std::vector<std::pair<std::string, Words>> layouts = {
      {"data 4, ZeRO 1", {"parallelism.zero_stage=1"}},
      {"data 4, ZeRO 3, reshard step", {"parallelism.zero_stage=3"}},
      {"column 4", {"parallelism.tensor_parallel_degree=4"}},
      {"pipeline 4", {"parallelism.pipeline_parallel_degree=4"}},
      {"ulysses 4", {"parallelism.context_parallel_ulysses=4"}},
      {"ulysses 2, ring 2", {"parallelism.context_parallel_ulysses=2", "parallelism.context_parallel_ring=2"}},
      {"ring 4", {"parallelism.context_parallel_ring=4"}}};
  const std::vector<Alternative> found = other_layouts(plan_of(4, {}));
  for (const auto& [name, words] : layouts) {
    const Plan plan = plan_of(4, words);
    EXPECT_EQ(named(found, name).memory_bytes, plan.largest_memory_bytes()) << name;
    EXPECT_EQ(named(found, name).sent_bytes, plan.largest_communication_bytes()) << name;
  }
  EXPECT_FALSE(offers(found, "data 4"));  // the plan's own layout
}

// The ranks of the other axes stay if only sequences are arranged anew.
TEST(Layouts, OfSequenceRanksKeepTheOtherAxes) {
  const std::vector<Alternative> found =
      other_layouts(plan_of(8, {"parallelism.context_parallel_ring=2", "parallelism.tensor_parallel_degree=2"}));
  EXPECT_TRUE(offers(found, "column 2, ulysses 2, data 2"));
  EXPECT_FALSE(offers(found, "ulysses 8"));
}

TEST(Layouts, NameWhatIsRefused) {
  EXPECT_NE(named(other_layouts(plan_of(4, {"model.num_attention_heads=2", "model.num_key_value_heads=2"})), "column 4")
                .refusal,
            "");
  EXPECT_EQ(named(other_layouts(plan_of(4, {"model.num_key_value_heads=2"})), "column 4").refusal, "");
  const Plan few = plan_of(
      4, {"training.global_batch_size=1", "training.local_batch_size=1", "parallelism.context_parallel_ring=4"});
  EXPECT_NE(named(other_layouts(few), "data 4").refusal, "");
  EXPECT_TRUE(says(explain_layouts(few), {"data 4 is left out: ", "no sequence to 3 of 4 data ranks"}));
}

// Sequence layouts without a token for each piece, and with more Ulysses ranks than heads, are not offered.
TEST(Layouts, OfSequencesAreThoseThatExist) {
  const auto with = [](const std::string& tokens) {
    return other_layouts(
        plan_of(8, {"training.seq_len=" + tokens, "model.num_attention_heads=4", "model.num_key_value_heads=4"}));
  };
  EXPECT_TRUE(offers(with("16"), "ring 8"));
  EXPECT_FALSE(offers(with("15"), "ring 8"));
  EXPECT_FALSE(offers(with("16"), "ulysses 8"));
}

TEST(Layouts, AreRecommendedIfTheyFit) {
  const Plan plan = plan_of(4, {});
  EXPECT_TRUE(says(explain_layouts(plan), {"data 4", "as planned", "sends least", "holds least"}));
  Plan tight = plan;
  tight.config.run.memory_gib_per_rank = 1e-6;
  EXPECT_TRUE(says(explain_layouts(tight), {"does not fit"}));
  EXPECT_EQ(explain_layouts(tight).find("sends least"), std::string::npos);
}

TEST(Layouts, AreNotComparedForOneRankAndLinformer) {
  EXPECT_EQ(explain_layouts(plan_of(1, {})), "");
  const Plan linformer = plan_of(2, {"model.objective=masked", "model.linformer_length=8"});
  EXPECT_TRUE(other_layouts(linformer).empty());
  EXPECT_TRUE(says(explain_layouts(linformer), {"not compared: Linformer computes another function"}));
}

}  // namespace
}  // namespace orthant::layouts_test
