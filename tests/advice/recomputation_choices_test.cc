// The table of recomputations: its numbers are those of the plans, and it recommends the cheapest that fits the memory.
#include "advice/recomputation_choices.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "advice/advised_plan.h"
#include "advice/explain.h"
#include "advice/memory_limit.h"
#include "advice/plan_json.h"
#include "base/errors.h"
#include "base/text.h"
#include "tests/support/says.h"

namespace orthant::recomputation_choices_test {
namespace {

using Words = std::vector<std::string>;

Plan plan_of(int ranks, Words words = {}) {
  words.insert(words.begin(), {"run.ranks=" + std::to_string(ranks), "model.vocab_size=512"});
  return make_plan(parse_config("", "run.toml", words), {.ranks = ranks, .vocab_size = 512});
}

std::string limit(int64_t bytes) {
  return fmt::format("run.memory_gib_per_rank={:.17g}", static_cast<double>(bytes) / (1 << 30));
}

const RecomputationChoice& named(const std::vector<RecomputationChoice>& choices, const std::string& name) {
  const auto found = std::ranges::find(choices, name, &RecomputationChoice::name);
  if (found == choices.end()) throw LogicError("no choice " + name);
  return *found;
}

// With tensor parallelism, ranges of several products repeat messages.
TEST(RecomputationChoices, AreThePlansOfTheSettings) {
  const std::string tensor = "parallelism.tensor_parallel_degree=2";
  const std::vector<RecomputationChoice> choices = recomputation_choices(plan_of(2, {tensor}));
  EXPECT_EQ(std::ranges::count(choices, true, &RecomputationChoice::chosen), 1);
  EXPECT_TRUE(named(choices, "none").chosen);
  const std::string mode = "activation_checkpoint.mode=selective", operations = "activation_checkpoint.operations=";
  const Plan mlp = plan_of(2, {tensor, mode, operations + "mlp"});
  EXPECT_EQ(named(choices, "mlp").memory_bytes, mlp.largest_memory_bytes());
  EXPECT_EQ(named(choices, "mlp").sent_bytes, mlp.largest_communication_bytes());
  EXPECT_GT(named(choices, "mlp").extra_bytes, 0);
  EXPECT_GT(named(choices, "mlp").extra_flops, 0);
  for (const char* name : {"norms", "swiglu", "norms + swiglu"}) {
    EXPECT_EQ(named(choices, name).extra_bytes, 0) << name;
    EXPECT_EQ(named(choices, name).extra_flops, 0) << name;
    EXPECT_LT(named(choices, name).memory_bytes, named(choices, "none").memory_bytes) << name;
  }
  EXPECT_LT(named(choices, "full").memory_bytes, named(choices, "norms + mlp").memory_bytes);
  // Full recomputation repeats a forward without the last product of each block: a quarter to a third of a step.
  EXPECT_GT(named(choices, "full").extra_flops, 0.15);
  EXPECT_LT(named(choices, "full").extra_flops, 1.0 / 3);
}

TEST(RecomputationChoices, HaveThePlansOwnSetting) {
  const auto choices = recomputation_choices(plan_of(1, {"activation_checkpoint.mode=full",
                                                         "activation_checkpoint.layers=2"}));
  EXPECT_TRUE(named(choices, "full, every 2 blocks").chosen);
  EXPECT_EQ(std::ranges::count(choices, true, &RecomputationChoice::chosen), 1);
  const auto in_any_order = recomputation_choices(
      plan_of(1, {"activation_checkpoint.mode=selective", "activation_checkpoint.operations=swiglu,norms"}));
  EXPECT_TRUE(named(in_any_order, "norms + swiglu").chosen);
}

// The recommended choice fits, and every cheaper one does not. Without a limit none is recommended.
TEST(RecomputationChoices, RecommendTheCheapestThatFits) {
  const Plan plan = plan_of(1);
  const std::vector<RecomputationChoice> choices = recomputation_choices(plan);
  EXPECT_EQ(recommended(choices, plan), nullptr);
  const auto limited_to = [&](double bytes) {
    Config config = plan.config;
    config.run.memory_gib_per_rank = bytes / (1 << 30);
    return make_plan(config, plan.facts);
  };
  for (const RecomputationChoice& target : choices) {
    const Plan limited = limited_to(static_cast<double>(target.memory_bytes));
    const std::vector<RecomputationChoice> compared = recomputation_choices(limited);
    const RecomputationChoice* best = recommended(compared, limited);
    ASSERT_NE(best, nullptr) << target.name;
    EXPECT_LE(best->memory_bytes, target.memory_bytes) << target.name;
    for (const RecomputationChoice& other : compared) {
      const auto cost = [](const RecomputationChoice& c) {
        return std::tuple(c.extra_flops, c.extra_bytes, c.repeated_operations);
      };
      EXPECT_FALSE(cost(other) < cost(*best) && other.memory_bytes <= target.memory_bytes)
          << other.name << " for " << target.name;
    }
  }
  const Plan none = limited_to(1e3);
  EXPECT_EQ(recommended(recomputation_choices(none), none), nullptr);
}

// A limit between two numbers of blocks is met by recomputing in the fewest blocks that fit. The control: the table has
// cheaper rows only because of them.
TEST(RecomputationChoices, RecomputeInTheFewestBlocksThatFit) {
  const Plan unlimited = plan_of(1, {"model.num_hidden_layers=12", "training.seq_len=256"});
  const auto bytes = [&](int64_t layers) {
    return plan_of(1, {"model.num_hidden_layers=12", "training.seq_len=256", "activation_checkpoint.mode=selective",
                       "activation_checkpoint.operations=norms,mlp",
                       fmt::format("activation_checkpoint.layers={}", layers)})
        .largest_memory_bytes();
  };
  ASSERT_LT(bytes(3), bytes(4));
  const Plan plan =
      plan_of(1, {"model.num_hidden_layers=12", "training.seq_len=256", limit((bytes(3) + bytes(4)) / 2)});
  const std::vector<RecomputationChoice> choices = recomputation_choices(plan);
  const RecomputationChoice& third = named(choices, "norms + mlp, every 3 blocks");
  EXPECT_EQ(third.memory_bytes, bytes(3));
  EXPECT_NEAR(third.extra_flops, named(choices, "norms + mlp").extra_flops / 3, 1e-9);
  const RecomputationChoice* best = recommended(choices, plan);
  ASSERT_NE(best, nullptr);
  EXPECT_LE(best->extra_flops, third.extra_flops);
  for (const RecomputationChoice& choice : recomputation_choices(unlimited)) EXPECT_EQ(choice.setting.layers, 1);
}

// The refusal of a plan that does not fit offers the cheapest recomputation that does.
TEST(RecomputationChoices, AreOfferedWhereAPlanDoesNotFit) {
  const Plan plan = plan_of(1);
  const std::vector<RecomputationChoice> choices = recomputation_choices(plan);
  const auto refusal = [&](const char* name) {
    try {
      require_fitting(plan_of(1, {limit(named(choices, name).memory_bytes)}));
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
    return std::string("no refusal");
  };
  EXPECT_TRUE(says(refusal("norms + swiglu"),
                   {"activation_checkpoint.mode=selective activation_checkpoint.operations=norms,swiglu ("}))
      << refusal("norms + swiglu");
  EXPECT_TRUE(says(refusal("full"), {"activation_checkpoint.mode=full ("})) << refusal("full");
  EXPECT_EQ(refusal("none"), "no refusal");
}

TEST(RecomputationChoices, AreATableAndAPartOfThePlanFile) {
  const int64_t least = named(recomputation_choices(plan_of(1)), "norms + swiglu").memory_bytes;
  const Plan plan = plan_of(1, {"activation_checkpoint.mode=full", limit(least)});
  const std::string text = explain(plan, Sections::all());
  EXPECT_TRUE(says(text, {"recomputation: "}));
  const auto row = [&](const std::string& name) {
    for (const std::string& line : split(explain_recomputation_choices(plan), '\n')) {
      if (trim(line).starts_with(name + "  ")) return line;
    }
    return std::string("no such row");
  };
  EXPECT_TRUE(says(row("norms + swiglu"), {"0.0 %", "recommended"})) << row("norms + swiglu");
  EXPECT_TRUE(says(row("full"), {"as planned"})) << row("full");
  EXPECT_TRUE(says(row("none"), {"does not fit"})) << row("none");
  EXPECT_TRUE(says(plan_json(plan, Sections::all()), {"recomputation_choices"}));
  EXPECT_TRUE(says(explain(plan_of(1), Sections::all()), {"memory_gib_per_rank = 0 sets no limit"}));
}

}  // namespace
}  // namespace orthant::recomputation_choices_test
