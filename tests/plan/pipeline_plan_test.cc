// The plan of a pipeline: the split of layers into stages, the comparison with other schedules, and the text of
// `orthant plan`. The reference is a search over all splits.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>
#include <nlohmann/json.hpp>
#include <numeric>

#include "advice/advised_plan.h"
#include "advice/explain.h"
#include "advice/plan_json.h"
#include "advice/schedule_choices.h"
#include "base/errors.h"
#include "base/text.h"
#include "parallel/pipeline/plan.h"
#include "plan/pipeline.h"
#include "plan/plan.h"
#include "plan/vocabulary.h"
#include "schedule/bubbles.h"
#include "schedule/passes.h"
#include "tests/support/says.h"

namespace orthant::pipeline_plan_test {
namespace {

using Words = std::vector<std::string>;

Plan plan_of(int ranks, const std::string& schedule, const Words& more = {}) {
  Words keys = {fmt::format("parallelism.pipeline_parallel_degree={}", ranks), "model.num_hidden_layers=16",
                "model.hidden_size=128", "model.intermediate_size=256", "training.seq_len=64",
                "training.global_batch_size=8", "training.local_batch_size=1"};
  keys.insert(keys.end(), more.begin(), more.end());
  Config config = parse_config("", "run.toml", keys);
  config.parallelism.pipeline_parallel_schedule = schedule;
  return advised_plan(config, {.ranks = ranks, .vocab_size = 2048});
}

std::vector<int64_t> layers_of(const Plan& plan) {
  std::vector<int64_t> layers;
  for (const Stage& stage : plan.stages) layers.push_back(stage.layers.size());
  return layers;
}

std::vector<double> costs(const Plan& plan) {
  std::vector<double> flops;
  for (const StageFlops& stage : count_stage_flops(plan.config, plan.architecture, plan.stages))
    flops.push_back(stage.sum());
  return flops;
}
double longest(const Plan& plan) {
  const std::vector<double> all = costs(plan);
  return *std::max_element(all.begin(), all.end());
}
double together(const Plan& plan) {
  const std::vector<double> all = costs(plan);
  return std::accumulate(all.begin(), all.end(), 0.0);
}

const std::string kLayers = "parallelism.pipeline_parallel_layers=";

TEST(Stages, AreEqualOrAsTheRunFileSaysOrByCost) {
  EXPECT_EQ(layers_of(plan_of(3, "1f1b")), (std::vector<int64_t>{6, 5, 5}));
  EXPECT_EQ(layers_of(plan_of(3, "1f1b", {kLayers + "9,7,0"})), (std::vector<int64_t>{9, 7, 0}));
  EXPECT_THROW(plan_of(3, "1f1b", {kLayers + "9,8,-1"}), ConfigError);
  EXPECT_THROW(plan_of(3, "1f1b", {kLayers + "9,7"}), ConfigError);
  EXPECT_THROW(plan_of(3, "1f1b", {kLayers + "9,7,1"}), ConfigError);
  // No split has a cheaper costliest stage than the split by cost. With this head it is at least 10 % cheaper than
  // equal parts.
  const double by_cost = longest(plan_of(3, "1f1b", {kLayers + "-1"}));
  double least = longest(plan_of(3, "1f1b"));
  EXPECT_LT(by_cost, 0.9 * least);
  for (int first = 0; first <= 16; ++first) {
    for (int second = 0; first + second <= 16; ++second) {
      const std::string cut = fmt::format("{},{},{}", first, second, 16 - first - second);
      least = std::min(least, longest(plan_of(3, "1f1b", {kLayers + cut})));
    }
  }
  EXPECT_NEAR(by_cost / least, 1, 1e-12);
  // A head that costs more than any stage of layers is a stage without layers.
  const Words heavy = {kLayers + "-1", "model.vocab_size=100000"};
  EXPECT_EQ(layers_of(plan_of(3, "1f1b", heavy)), (std::vector<int64_t>{8, 8, 0}));
}

double busiest(const Plan& plan) { return *std::max_element(plan.timeline.busy.begin(), plan.timeline.busy.end()); }

// With two stages per rank, the split by cost minimizes the work of the busiest rank. The test tries every split.
TEST(Stages, ByCostNoOthersBusiestRankDoesLess) {
  for (const char* schedule : {"zb_v", "v_half", "interleaved_1f1b"}) {
    for (const char* vocabulary : {"2048", "4000", "9000"}) {
      const Words more = {"model.num_hidden_layers=7", fmt::format("model.vocab_size={}", vocabulary)};
      const auto with = [&](const std::string& layers) {
        Words words = more;
        words.push_back(kLayers + layers);
        return plan_of(2, schedule, words);
      };
      double least = 1e300;
      for (int a = 0; a <= 7; ++a)
        for (int b = 0; a + b <= 7; ++b)
          for (int c = 0; a + b + c <= 7; ++c)
            least = std::min(least, busiest(with(fmt::format("{},{},{},{}", a, b, c, 7 - a - b - c))));
      EXPECT_NEAR(busiest(with("-1")) / least, 1, 1e-12) << schedule << ", " << vocabulary;
    }
  }
  // The head costs as much as four layers and is on the first rank. Every rank then has the work of five layers.
  const Plan plan = plan_of(4, "zb_v", {kLayers + "-1", "model.vocab_size=5800"});
  EXPECT_EQ(layers_of(plan), (std::vector<int64_t>{1, 2, 2, 2, 3, 3, 3, 0}));
}

// The order of passes depends on durations only where the schedule says so. Control: one order does.
TEST(Stages, AreOrderedByDurationsOnlyIfTheScheduleSaysSo) {
  bool any_differs = false;
  for (const PipelineSchedule& schedule : pipeline_schedules()) {
    const PipelineShape equal{.ranks = 4, .stages_per_rank = schedule.stages_per_rank, .microbatches = 12};
    for (const auto& [forward, input, weights] : {std::tuple(1.0, 3.0, 0.2), {3, 1, 1}, {1, 1, 3}}) {
      PipelineShape other = equal;
      other.durations = Durations::of(forward, input, weights);
      const bool differs = schedule.make(equal) != schedule.make(other);
      EXPECT_TRUE(!differs || schedule.uses_durations) << schedule.name;
      any_differs = any_differs || differs;
    }
  }
  EXPECT_TRUE(any_differs);
}

// With fewer layers than stages, the last stages have none. Every schedule is legal, down to 3 layers on 4 ranks.
TEST(Stages, MayBeWithoutLayers) {
  for (const PipelineSchedule& schedule : pipeline_schedules()) {
    const Plan plan = plan_of(4, std::string(schedule.name), {"model.num_hidden_layers=3"});
    std::vector<int64_t> expected(static_cast<size_t>(4 * schedule.stages_per_rank), 0);
    std::fill_n(expected.begin(), 3, 1);
    EXPECT_EQ(layers_of(plan), expected) << schedule.name;
    for (size_t p = 0; p < plan.parameters.size(); ++p) {
      const Stage& stage = plan.stages[static_cast<size_t>(plan.stage_of(plan.parameters[p]))];
      const int64_t layer = plan.parameters[p].layer;
      const bool is_there = layer < 0 ? stage.first : layer >= 3 ? stage.last : stage.layers.begin == layer;
      EXPECT_TRUE(is_there && plan.owner_of(p) == stage.owner) << plan.parameters[p].name << ", " << schedule.name;
    }
  }
  // 126 layers on the 128 stages of a V-shaped schedule of 64 ranks.
  const std::vector<int64_t> deep = layers_of(plan_of(64, "zb_v", {"model.num_hidden_layers=126"}));
  EXPECT_EQ(deep.size(), 128u);
  EXPECT_EQ(std::accumulate(deep.begin(), deep.end(), int64_t{0}), 126);
  EXPECT_EQ(deep.back(), 0);
}

// GPT models of the published experiments with vocabulary parallelism. Layer redistribution gives no surplus layer to
// the first stage, so that the peak is that of equal stages, as published. The control gives the surplus to the first
// stages: the step is as long, but the peak 3 to 16 GiB higher.
TEST(Stages, OfRedistributionHoldNoMoreThanEqualOnes) {
  struct Case {
    int ranks, layers, hidden;
  };
  for (const Case& c : {Case{8, 32, 3072}, Case{16, 48, 4096}, Case{32, 64, 5120}}) {
    const auto with = [&](const std::string& setting) {
      return plan_of(c.ranks, "1f1b",
                     {fmt::format("model.num_hidden_layers={}", c.layers),
                      fmt::format("model.hidden_size={}", c.hidden),
                      fmt::format("model.intermediate_size={}", 4 * c.hidden),
                      fmt::format("model.num_attention_heads={}", c.hidden / 128),
                      fmt::format("model.num_key_value_heads={}", c.hidden / 128), "model.mlp=gelu",
                      "model.vocab_size=256000", "model.max_position_embeddings=2048", "training.seq_len=2048",
                      "training.dtype=bfloat16", "training.global_batch_size=128", setting});
    };
    const Plan plan = with("parallelism.vocabulary_parallel=redistribution"), equal = with(kLayers + "[]");
    std::vector<int64_t> layers = layers_of(plan);
    EXPECT_EQ(layers.front(), c.layers / c.ranks);
    std::sort(layers.begin(), layers.end() - 1, std::greater<>());
    const Plan control = with(fmt::format("{}{}", kLayers, fmt::join(layers, ",")));
    EXPECT_NEAR(plan.timeline.makespan / control.timeline.makespan, 1, 0.005) << c.ranks;
    EXPECT_LT(plan.timeline.makespan, 0.75 * equal.timeline.makespan) << c.ranks;
    EXPECT_EQ(plan.largest_memory_bytes(), equal.largest_memory_bytes()) << c.ranks;
    const double saved = static_cast<double>(control.largest_memory_bytes() - plan.largest_memory_bytes()) / 0x1p30;
    EXPECT_TRUE(saved > 3 && saved < 16) << c.ranks << " ranks, " << saved << " GiB";
  }
}

TEST(Stages, CostWhatTheModelCosts) {
  for (const Words& more : {Words{}, Words{"model.objective=masked", "model.linformer_length=8"}}) {
    const Plan plan = plan_of(4, "zb_v", more);
    const double model = training_flops_per_token(plan.architecture, 64);
    EXPECT_NEAR(together(plan) / model, 1, 1e-12);
    // With recomputation, blocks run forward once more, each recomputed range without its last product.
    const auto with = [&](const std::string& recomputation) {
      Words again = more;
      for (const std::string& word : split(recomputation, ' ')) again.push_back("activation_checkpoint." + word);
      return together(plan_of(4, "zb_v", again));
    };
    const Architecture& a = plan.architecture;
    const double head = 6.0 * 2048 * 128, layers = static_cast<double>(a.num_hidden_layers);
    const double down = 2 * static_cast<double>(a.intermediate_size * a.hidden_size);
    const double whole = (model - head) / 3 - layers * down;
    EXPECT_NEAR(with("mode=full") / (model + whole), 1, more.empty() ? 1e-12 : 0.01);
    EXPECT_NEAR(with("mode=full layers=2") / (model + whole / 2), 1, more.empty() ? 1e-12 : 0.01);
    EXPECT_NEAR(with("mode=selective operations=norms,swiglu") / model, 1, 1e-12);
    EXPECT_NEAR(with("mode=selective operations=mlp") / (model + layers * 2 * down), 1, 1e-12);
  }
}

// Schedules that place W by durations: one made for the estimated durations takes no longer than one made for equal
// durations, and has no higher peak of live microbatches.
TEST(Schedules, AreMadeForThePassesThereAre) {
  const std::string kFull = "activation_checkpoint.mode=full";
  const Words wide = {kFull, "model.hidden_size=512", "model.intermediate_size=1408"};
  for (const char* name : {"v_half", "v_min"}) {
    for (const int ranks : {2, 3, 4, 8}) {
      for (const Words& more : {Words{}, Words{kFull}, Words{kFull, kLayers + "-1"}, wide}) {
        const Plan plan = plan_of(ranks, name, more);
        const Schedule equal = add_messages(pipeline_schedule(name).make({ranks, 2, 8}));
        const Timeline timeline = simulate(equal, estimate_durations(plan, plan.stages));
        EXPECT_LE(plan.timeline.makespan, timeline.makespan) << name << " on " << ranks;
        for (size_t rank = 0; rank < equal.rows.size(); ++rank)
          EXPECT_LE(plan.timeline.peak_in_flight[rank], timeline.peak_in_flight[rank]) << name << " on " << ranks;
        if (ranks == 2 && more == wide && name == std::string("v_half")) {
          EXPECT_LT(plan.timeline.makespan, 0.97 * timeline.makespan) << name;
        }
      }
    }
  }
}

// The same with a sharded vocabulary: the extra warm-up forwards and the vocabulary passes come on top. The control is
// the order for equal durations.
TEST(Schedules, WithAShardedVocabularyAreMadeForThePassesThereAreToo) {
  double most_gained = 0;
  for (const char* name : {"v_half", "v_min"}) {
    for (const char* order : {"algorithm_1", "algorithm_2"}) {
      for (const int ranks : {2, 4, 8}) {
        for (const Words& recompute : {Words{}, Words{"activation_checkpoint.mode=full"}}) {
          Words words = {std::string("parallelism.vocabulary_parallel=") + order, "training.global_batch_size=24",
                         "model.hidden_size=512", "model.intermediate_size=1408"};
          words.insert(words.end(), recompute.begin(), recompute.end());
          const Plan plan = plan_of(ranks, name, words);
          const Durations durations = estimate_durations(plan, plan.stages);
          const int more = count_extra_warmup_forwards(plan.config, 2);
          const Schedule equal = with_vocabulary(
              plan, pipeline_schedule(name).make({ranks, 2, 24, Durations::of(1, 1, 1), more}), durations);
          const Timeline control = simulate(equal, durations);
          EXPECT_LE(plan.timeline.makespan, control.makespan) << name << ", " << order << ", " << ranks;
          for (size_t rank = 0; rank < equal.rows.size(); ++rank) {
            EXPECT_LE(plan.timeline.peak_in_flight[rank], control.peak_in_flight[rank]) << name << ", " << order;
          }
          most_gained = std::max(most_gained, 1 - plan.timeline.makespan / control.makespan);
        }
      }
    }
  }
  EXPECT_GT(most_gained, 0.02);
}

TEST(ScheduleChoices, AreThePlansOfTheOtherSchedules) {
  const Plan plan = plan_of(4, "1f1b");
  const std::vector<ScheduleChoice> choices = schedule_choices(plan);
  ASSERT_EQ(choices.size(), pipeline_schedules().size());
  int chosen = 0;
  for (const ScheduleChoice& choice : choices) {
    chosen += choice.chosen;
    EXPECT_EQ(choice.chosen, choice.name == "1f1b");
    const Plan other = plan_of(4, choice.name);
    EXPECT_EQ(choice.bubble, other.timeline.bubble) << choice.name;
    EXPECT_EQ(choice.memory_bytes, other.largest_memory_bytes()) << choice.name;
    EXPECT_EQ(choice.step, other.timeline.makespan) << choice.name;
  }
  EXPECT_EQ(chosen, 1);
  const auto named = [&](const std::string& name) {
    for (const ScheduleChoice& choice : choices)
      if (choice.name == name) return choice;
    throw LogicError(name);
  };
  EXPECT_LT(named("v_min").memory_bytes, named("v_half").memory_bytes);
  EXPECT_LT(named("v_half").memory_bytes, named("zb_v").memory_bytes);
  EXPECT_LT(named("1f1b").memory_bytes, named("gpipe").memory_bytes);
  EXPECT_LT(named("zb_h1").bubble, named("1f1b").bubble);
  EXPECT_GT(named("zb_v").sent_bytes, named("1f1b").sent_bytes);
  // A schedule that the other settings do not permit is listed with its refusal.
  const Plan interlaced = plan_of(4, "1f1b", {"parallelism.vocabulary_parallel=interlaced"});
  for (const ScheduleChoice& choice : schedule_choices(interlaced))
    EXPECT_EQ(choice.refusal.empty(), choice.name == "1f1b") << choice.name;
  EXPECT_TRUE(schedule_choices(plan_of(1, "1f1b")).empty());
}

// pipeline_parallel_layers belongs to one number of stages. A choice that drops it says so, in the table and where it
// is offered.
TEST(ScheduleChoices, SayWhatElseTheyChange) {
  const std::string layers = "parallelism.pipeline_parallel_layers=";
  const std::string stages = "parallelism.pipeline_parallel_stages_per_rank=0";
  const Words by_hand = {kLayers + "3,4,4,5"},
              both = {kLayers + "4,4,4,1,1,1,1,0,0,0,0,0", "parallelism.pipeline_parallel_stages_per_rank=3"};
  for (const ScheduleChoice& choice : schedule_choices(plan_of(4, "gpipe", by_hand))) {
    const bool fits = pipeline_schedule(choice.name).stages_per_rank == 1;
    EXPECT_EQ(choice.otherwise, fits ? "" : layers) << choice.name;
  }
  for (const ScheduleChoice& choice : schedule_choices(plan_of(4, "interleaved_1f1b", both)))
    EXPECT_EQ(choice.otherwise, choice.chosen ? "" : stages + " " + layers) << choice.name;
  for (const ScheduleChoice& choice : schedule_choices(plan_of(4, "zb_v", {kLayers + "-1"})))
    EXPECT_EQ(choice.otherwise, "") << choice.name;
  EXPECT_TRUE(
      says(explain(plan_of(4, "gpipe", by_hand), Sections::all()), {"half of 1F1B's live passes; with", layers}));
  Words limited = by_hand;
  limited.emplace_back("run.memory_gib_per_rank=0.021");
  EXPECT_TRUE(says(message_of<ConfigError>([&] { plan_of(4, "gpipe", limited); }),
                   {"parallelism.pipeline_parallel_schedule=v_min " + layers + " ("}));
}

TEST(ScheduleChoices, ThatFitAreOfferedWhereTheRunFilesDoesNot) {
  const std::vector<ScheduleChoice> choices = schedule_choices(plan_of(4, "gpipe"));
  int64_t limit = 0;
  for (const ScheduleChoice& choice : choices)
    if (choice.name == "zb_h2") limit = choice.memory_bytes;
  const std::string gib = fmt::format("run.memory_gib_per_rank={:.17g}", static_cast<double>(limit) / 0x1p30);
  const std::string refusal = message_of<ConfigError>([&] { plan_of(4, "gpipe", {gib}); });
  int offered = 0;
  for (const ScheduleChoice& choice : choices) {
    const std::string change = fmt::format("parallelism.pipeline_parallel_schedule={} (", choice.name);
    EXPECT_EQ(refusal.find(change) != std::string::npos, choice.memory_bytes <= limit) << choice.name << refusal;
    offered += choice.memory_bytes <= limit;
  }
  EXPECT_TRUE(offered > 1 && offered < 9) << offered;
}

// Steps overlap with post-validation only: then ZB-H2, which has no bubble of its own, is shorter than ZB-H1.
TEST(ScheduleChoices, CountStepsThatOverlap) {
  const auto choices = [](bool post_validates) {
    return schedule_choices(plan_of(4, "1f1b", {"training.global_batch_size=16", "model.hidden_size=512",
                                                fmt::format("parallelism.pipeline_parallel_post_validation={}",
                                                            post_validates)}));
  };
  const auto step = [](const std::vector<ScheduleChoice>& all, const char* name) {
    return std::ranges::find(all, name, &ScheduleChoice::name)->step;
  };
  const auto alone = choices(false), overlapping = choices(true);
  EXPECT_NEAR(step(alone, "zb_h2") / step(alone, "zb_h1"), 1, 0.02);
  EXPECT_LT(step(overlapping, "zb_h2"), 0.97 * step(overlapping, "zb_h1"));
  EXPECT_LT(step(overlapping, "zb_h2"), 0.97 * step(alone, "zb_h2"));
  EXPECT_NEAR(step(overlapping, "gpipe") / step(alone, "gpipe"), 1, 1e-9);
  const Plan overlapped = plan_of(4, "zb_h2", {"parallelism.pipeline_parallel_post_validation=true"});
  EXPECT_TRUE(says(explain(overlapped, Sections::all()),
                   {"steps overlap (post-validation): one begins every "}));
}

TEST(ExplainPipeline, SaysWhoDoesWhatWhen) {
  const Plan plan = plan_of(2, "1f1b", {"training.global_batch_size=3"});
  const std::string text = explain(plan, Sections::all());
  EXPECT_TRUE(says(text, {"rank 0 | 0F0 0F1 .   0B0 0F2 0B1 .   0B2\n",  //
                          "rank 1 | .   1F0 1B0 1F1 1B1 1F2 1B2\n"}))
      << text;
  EXPECT_TRUE(says(text, {"embedding, layers 0-7", "layers 8-15, head",
                          fmt::format("bubble {:.1f} % of the row", 100 * plan.timeline.bubble), "v_half", "as planned",
                          "two stages a rank, half of 1F1B's live passes"}))
      << text;
  const auto json = nlohmann::json::parse(plan_json(plan, Sections::all()));
  EXPECT_EQ(json["schedule"]["name"], "1f1b");
  EXPECT_EQ(json["schedule"]["stages"][1]["first_layer"], 8);
  EXPECT_EQ(json["timeline"]["own_bubble"], max_rank_bubble(plan.timeline));
  EXPECT_EQ(json["timeline"]["peak_live_passes"], (std::vector<int>{2, 1}));
  EXPECT_EQ(json["schedule_choices"].size(), pipeline_schedules().size());
}

// A plan of 64 pipeline ranks and 512 microbatches takes less than 1 s of processor time.
TEST(PipelinePlan, OfManyRanksIsThereAtOnce) {
  const std::clock_t begin = std::clock();
  const Plan plan = plan_of(64, "1f1b", {"training.global_batch_size=512", "model.num_hidden_layers=128"});
  const double seconds = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  EXPECT_EQ(plan.timeline.peak_in_flight[0], 64);
  EXPECT_LT(seconds, 1) << "planned";
  EXPECT_LT(explain(plan, Sections::all()).size(), 40'000u);  // with all other schedules
}

}  // namespace
}  // namespace orthant::pipeline_plan_test
