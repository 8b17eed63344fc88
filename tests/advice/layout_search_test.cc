// The search of layouts: it finds the winner of an exhaustive search on a small space, keeps the user's keys, and says
// how much memory is needed where nothing fits. Control: on other hardware another layout wins.
#include "advice/layout_search.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "advice/answer.h"
#include "base/errors.h"
#include "tests/support/says.h"

namespace orthant::layout_search_test {
namespace {

using Words = std::vector<std::string>;

Config config_of(int ranks, Words words = {}) {
  words.insert(words.begin(),
               {"run.ranks=" + std::to_string(ranks), "run.device=cuda", "training.dtype=bfloat16",
                "model.vocab_size=32000", "model.hidden_size=2048", "model.intermediate_size=5632",
                "model.num_attention_heads=16", "model.num_key_value_heads=8", "model.head_dim=128",
                "model.num_hidden_layers=8", "model.max_position_embeddings=4096", "training.seq_len=4096",
                "training.local_batch_size=1", "training.global_batch_size=16", "validation.freq=0"});
  return parse_config("", "run.toml", words);
}

RunFacts facts_on(const Hardware& hardware, int ranks) {
  return {.ranks = ranks, .vocab_size = 32000, .hardware = std::make_shared<const Hardware>(hardware)};
}

Hardware h100_of(double memory_gib) {
  Hardware h100 = load_hardware("h100-8x");
  h100.device.memory_bytes = memory_gib * 0x1p30;
  return h100;
}

// The shortest step that fits, over all combinations of the searched keys in a smaller space.
double exhaustive(const Config& base, const RunFacts& facts) {
  double best = INFINITY;
  for (const int tensor : {1, 2, 4}) {
    for (const int pipeline : {1, 2, 4}) {
      if (tensor * pipeline > 4) continue;
      for (const auto& [stage, reshard] : std::vector<std::pair<int, std::string>>{
               {0, "step"}, {1, "step"}, {2, "step"}, {3, "step"}, {3, "never"}, {3, "microbatch"}}) {
        for (const ActivationCheckpointConfig& recompute :
             {ActivationCheckpointConfig{.mode = "none"},
              ActivationCheckpointConfig{.mode = "selective", .operations = {"norms", "swiglu"}},
              ActivationCheckpointConfig{.mode = "selective", .operations = {"norms", "attention", "swiglu"}},
              ActivationCheckpointConfig{.mode = "full"}}) {
          Config config = base;
          config.parallelism.tensor_parallel_degree = tensor;
          config.parallelism.pipeline_parallel_degree = pipeline;
          config.parallelism.zero_stage = stage;
          config.parallelism.zero_reshard = reshard;
          config.activation_checkpoint = recompute;
          try {
            const Plan plan = make_plan(config, facts);
            if (fit_of(plan).fits()) best = std::min(best, plan.step_time->seconds);
          } catch (const ConfigError&) {
            continue;
          }
        }
      }
    }
  }
  return best;
}

// The search also tries microbatch sizes, schedules and placements, so it may be faster than the exhaustive search
// without them. With these keys set, both have the same winner.
TEST(LayoutSearch, FindsTheBestOfASmallSpace) {
  for (const double gib : {10.0, 14.0, 24.0, 80.0}) {
    const RunFacts facts = facts_on(h100_of(gib), 4);
    const Words keys = {"training.local_batch_size=1", "parallelism.pipeline_parallel_schedule=1f1b",
                        "parallelism.vocabulary_parallel=none"};
    const SearchResult narrow = search_layouts(config_of(4, keys), facts), wide = search_layouts(config_of(4), facts);
    const double best = exhaustive(config_of(4, keys), facts);
    if (std::isinf(best)) {
      EXPECT_TRUE(narrow.fitting.empty()) << gib;
      continue;
    }
    ASSERT_FALSE(narrow.fitting.empty()) << gib;
    EXPECT_DOUBLE_EQ(narrow.fitting.front().time.seconds, best) << gib;
    EXPECT_LE(wide.fitting.front().time.seconds, best) << gib;
    for (const FoundLayout& found : wide.fitting) EXPECT_GE(found.time.seconds, wide.fitting.front().time.seconds);
  }
}

// A returned run file has the planned step time that the search has given for it.
TEST(LayoutSearch, ReturnsRunsThatCanBePlanned) {
  const RunFacts facts = facts_on(h100_of(24), 8);
  const SearchResult result = search_layouts(config_of(8), facts);
  ASSERT_FALSE(result.fitting.empty());
  const FoundLayout& best = result.fitting.front();
  const Config again = parse_config(print_config(best.config), "best.toml", {});
  EXPECT_EQ(make_plan(again, facts).step_time->seconds, best.time.seconds);
  const auto json = nlohmann::json::parse(search_json(result));
  EXPECT_EQ(json["search"][0]["step_seconds"], best.time.seconds);
  EXPECT_EQ(json["search"].size(), result.fitting.size());
  EXPECT_TRUE(says(explain_search(result, *facts.hardware), {"search on h100-8x", "MFU", best.name}));
}

TEST(LayoutSearch, KeepsTheKeysOfTheUser) {
  const RunFacts facts = facts_on(h100_of(80), 8);
  const SearchResult result =
      search_layouts(config_of(8, {"parallelism.tensor_parallel_degree=2", "parallelism.zero_stage=1"}), facts);
  ASSERT_FALSE(result.fitting.empty());
  for (const FoundLayout& found : result.fitting) {
    EXPECT_EQ(found.config.parallelism.tensor_parallel_degree, 2) << found.name;
    EXPECT_EQ(found.config.parallelism.zero_stage, 1) << found.name;
  }
}

TEST(LayoutSearch, NamesTheSmallestMemoryWhereNothingFits) {
  Hardware small = h100_of(2);
  const SearchResult result = search_layouts(config_of(4), facts_on(small, 4));
  EXPECT_TRUE(result.fitting.empty());
  ASSERT_TRUE(result.smallest);
  EXPECT_TRUE(says(explain_search(result, small), {"no layout fits; the least memory is ", result.smallest->name}));
}

// Slow links between single-device hosts make another layout the best.
TEST(LayoutSearchControl, OtherLinksHaveAnotherWinner) {
  Hardware fast = h100_of(14), slow = fast;
  slow.device.per_host = 1;
  slow.between_hosts.bytes_per_s = 1e9;
  const SearchResult on_fast = search_layouts(config_of(4), facts_on(fast, 4)),
                     on_slow = search_layouts(config_of(4), facts_on(slow, 4));
  ASSERT_FALSE(on_fast.fitting.empty() || on_slow.fitting.empty());
  EXPECT_NE(on_fast.fitting.front().name, on_slow.fitting.front().name);
}

}  // namespace
}  // namespace orthant::layout_search_test
