// The answer of a plan on given hardware: time, fit, and the change that makes it fit. Controls: a device with more and
// one with less memory; a plan without hardware.
#include "advice/answer.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "advice/explain.h"
#include "advice/fit.h"
#include "advice/fitting_changes.h"
#include "advice/plan_json.h"
#include "advice/schedule_choices.h"
#include "advice/vocabulary_choices.h"
#include "tests/support/says.h"

namespace orthant::answer_test {
namespace {

using Words = std::vector<std::string>;

Plan plan_on(const Hardware* hardware, int ranks, Words words = {}) {
  words.insert(words.begin(), {"run.ranks=" + std::to_string(ranks), "run.device=cuda", "training.dtype=bfloat16",
                               "model.vocab_size=32000", "model.hidden_size=1024", "model.intermediate_size=2816",
                               "model.num_hidden_layers=8", "model.max_position_embeddings=2048",
                               "training.seq_len=2048", "training.local_batch_size=4"});
  const Config config = parse_config("", "run.toml", words);
  RunFacts facts{.ranks = ranks, .vocab_size = config.model.vocab_size};
  if (hardware != nullptr) facts.hardware = std::make_shared<const Hardware>(*hardware);
  return make_plan(config, facts);
}

// An H100 whose memory exceeds that of the plan, together with all that the plan does not count, by a number of bytes.
Hardware with_spare(int ranks, int64_t spare_bytes) {
  Hardware h100 = load_hardware("h100-8x");
  const Fit fit = fit_of(plan_on(&h100, ranks));
  h100.device.memory_bytes = static_cast<double>(fit.tensor_bytes + fit.other_bytes + spare_bytes);
  return h100;
}

TEST(Answer, SaysWhetherTheRunFits) {
  const Hardware enough = with_spare(4, 1 << 30), little = with_spare(4, -(1 << 30));
  EXPECT_TRUE(fit_of(plan_on(&enough, 4)).fits());
  EXPECT_EQ(fit_of(plan_on(&enough, 4)).spare_bytes(), 1 << 30);
  EXPECT_FALSE(fastest_that_fits(plan_on(&enough, 4)));
  EXPECT_TRUE(says(explain(plan_on(&enough, 4), Sections::all()),
                   {"hardware h100-8x (--hardware names another), ", " tables measured; assumed in ", "tokens/s",
                    "products ", "fits with 1.0 GiB to spare"}));
  EXPECT_TRUE(
      says(explain(plan_on(&little, 4), Sections::all()), {"does not fit, lacks 1.0 GiB", "it fits with a step of "}));
}

TEST(Answer, FitsTheLimitOfTheUser) {
  const Hardware enough = with_spare(4, 1 << 30);
  EXPECT_EQ(nlohmann::json::parse(plan_json(plan_on(&enough, 4), {}))["fits"], true);
  const Plan limited = plan_on(&enough, 4, {"run.memory_gib_per_rank=0.01"});
  const nlohmann::json answer = nlohmann::json::parse(plan_json(limited, {}));
  EXPECT_EQ(answer["fits"], false);
  EXPECT_EQ(answer["worst_rank"]["limit_bytes"], fit_of(limited).limit_bytes);
}

// A plan with the most bytes that fit has nothing to spare. The allocator's slack grows with them.
TEST(Answer, KnowsTheMostThatFits) {
  Hardware h100 = load_hardware("h100-8x");
  h100.process_memory.allocator_slack_share = 0.1;
  const Plan plan = plan_on(&h100, 4);
  const Fit fit = fit_of(plan);
  const auto most = static_cast<double>(*most_tensor_bytes(plan));
  const double fixed = static_cast<double>(fit.other_bytes) - 0.1 * static_cast<double>(fit.tensor_bytes);
  EXPECT_NEAR(1.1 * most + fixed, h100.device.memory_bytes, 2);
  const Plan limited = plan_on(&h100, 4, {"run.memory_gib_per_rank=2"});
  EXPECT_EQ(most_tensor_bytes(limited), int64_t{2} << 30);
  EXPECT_EQ(most_tensor_bytes(plan_on(nullptr, 4)), std::nullopt);
  EXPECT_TRUE(fit_of(plan_on(nullptr, 4)).fits());
}

// Over NCCL, a pipeline rank has a communicator for its group, and at least one in each of two directions.
TEST(Answer, CountsTheCommunicatorsOfNccl) {
  const Words pipeline = {"parallelism.pipeline_parallel_degree=4", "training.local_batch_size=1",
                          "training.global_batch_size=8"};
  Hardware h100 = load_hardware("h100-8x");
  const auto other_bytes = [&](const char* transport) {
    Words words = pipeline;
    words.push_back(std::string("run.transport=") + transport);
    return fit_of(plan_on(&h100, 4, words)).other_bytes;
  };
  const int64_t nccl = other_bytes("nccl"), gloo = other_bytes("gloo");
  h100.process_memory.communicator_bytes = 0;
  EXPECT_GE(nccl - other_bytes("nccl"), 3 * (gloo - other_bytes("gloo")));
}

// The offered change is legal, fits, and no cheaper one of those compared does.
TEST(Answer, OffersTheFastestChangeThatFits) {
  const Hardware little = with_spare(4, -(int64_t{3} << 30));
  const Plan plan = plan_on(&little, 4);
  const auto change = fastest_that_fits(plan);
  ASSERT_TRUE(change);
  EXPECT_LE(change->memory_bytes, *most_tensor_bytes(plan));
  for (const Alternative& other : alternatives_to(plan)) {
    const bool fits = other.memory_bytes <= *most_tensor_bytes(plan);
    EXPECT_TRUE(!fits || change->step_seconds <= other.step_seconds) << other.change;
  }
  Hardware none = little;
  none.device.memory_bytes = 1.01e9;
  none.process_memory.context_bytes = 1e9;
  EXPECT_FALSE(fastest_that_fits(plan_on(&none, 4)));
  EXPECT_TRUE(says(explain_answer(plan_on(&none, 4)), {"no change of ZeRO, recomputation, tensor and pipeline ranks"}));
}

// On devices of many sizes, no stage of ZeRO with a set of recomputed operations and a size of microbatches is faster
// than the offered change and fits. With one layer, full recomputation is not the set that needs least memory.
TEST(Answer, OffersNoSlowerChangeThanOthersThatFit) {
  int offered = 0, without_full = 0;
  for (const int largest : {1, 4}) {
    const Words model = {"model.num_hidden_layers=1",
                         "model.vocab_size=512",
                         "model.max_position_embeddings=16384",
                         "training.seq_len=16384",
                         fmt::format("training.local_batch_size={}", largest),
                         fmt::format("training.global_batch_size={}", 2 * largest)};
    Hardware device = load_hardware("h100-8x");
    device.process_memory = {.context_bytes = 0.5e9};
    const auto planned_bytes = static_cast<double>(plan_on(&device, 2, model).largest_memory_bytes());
    for (const double share : {0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.94, 0.97, 0.99}) {
      device.device.memory_bytes = 0.5e9 + share * planned_bytes;
      double fastest = INFINITY;
      bool full_fits = false;
      const auto compare = [&](int zero, int sequences, const std::string& mode, const std::string& operations) {
        Words words = model;
        words.insert(words.end(), {"activation_checkpoint.mode=" + mode, fmt::format("parallelism.zero_stage={}", zero),
                                   fmt::format("training.local_batch_size={}", sequences)});
        if (!operations.empty()) words.push_back("activation_checkpoint.operations=" + operations);
        const Plan other = plan_on(&device, 2, words);
        if (!fit_of(other).fits()) return;
        fastest = std::min(fastest, other.step_time->seconds);
        full_fits = full_fits || mode == "full";
      };
      for (const int zero : {0, 1, 2, 3}) {
        for (int sequences = 1; sequences <= largest; sequences *= 2) {
          for (const char* mode : {"none", "full"}) compare(zero, sequences, mode, "");
          for (const char* operations : {"norms", "norms,attention", "norms,attention,swiglu", "norms,attention,mlp"}) {
            compare(zero, sequences, "selective", operations);
          }
        }
      }
      const auto change = fastest_that_fits(plan_on(&device, 2, model));
      EXPECT_TRUE(fastest == INFINITY || (change && change->step_seconds <= fastest)) << share;
      offered += fastest < INFINITY ? 1 : 0;
      without_full += fastest < INFINITY && !full_fits ? 1 : 0;
    }
  }
  EXPECT_GT(offered, 8);
  EXPECT_GT(without_full, 0);
}

// Changes leave no rank without a sequence.
TEST(Answer, OffersNoRanksWithoutSequences) {
  const Hardware h100 = load_hardware("h100-8x");
  const Plan plan = plan_on(&h100, 2, {"training.global_batch_size=4"});
  bool on_four = false;
  for (const Alternative& other : alternatives_to(plan)) {
    EXPECT_NE(other.change, "run.ranks=8");
    on_four = on_four || other.change == "run.ranks=4";
  }
  EXPECT_TRUE(on_four);
}

// The moment of the peak is an Action of the rank's row, or the update.
TEST(Answer, NamesTheMomentOfThePeak) {
  const Hardware h100 = load_hardware("h100-8x");
  const Plan plan = plan_on(&h100, 2, {"parallelism.pipeline_parallel_degree=2"});
  const int rank = plan.worst_rank();
  const auto& peak = plan.memory_of(rank).peak;
  ASSERT_TRUE(peak);
  EXPECT_NE(std::ranges::find(plan.row(rank), *peak), plan.row(rank).end());
  EXPECT_EQ(plan.memory_of(rank).total(), plan.largest_memory_bytes());
}

// Tables of choices mark what does not fit the device, and recommend only what fits.
TEST(Answer, RecommendsNothingThatDoesNotFit) {
  const Words keys = {"parallelism.pipeline_parallel_degree=4", "training.local_batch_size=1"};
  const Hardware h100 = load_hardware("h100-8x");
  const Plan plan = plan_on(&h100, 4, keys);
  const std::vector<VocabularyChoice> choices = vocabulary_choices(plan);
  const VocabularyChoice* best = recommended(choices, plan);
  ASSERT_NE(best, nullptr);
  Hardware small = h100;
  const int64_t room = *most_tensor_bytes(plan) - best->memory_bytes;
  small.device.memory_bytes -= static_cast<double>(room) + 1e6 * (1 + small.process_memory.allocator_slack_share);
  small.device.memory_bytes -= static_cast<double>(room) * small.process_memory.allocator_slack_share;
  const Plan tight = plan_on(&small, 4, keys);
  const std::vector<VocabularyChoice> others = vocabulary_choices(tight);
  const VocabularyChoice* other = recommended(others, tight);
  EXPECT_TRUE(other == nullptr || other->name != best->name);
  EXPECT_TRUE(says(explain_vocabulary_choices(tight), {"does not fit"}));
  EXPECT_TRUE(says(explain_schedule_choices(tight), {"gpipe", "does not fit"}));
}

TEST(Answer, IsInTheJsonOfThePlan) {
  const Hardware h100 = load_hardware("h100-8x");
  const Plan plan = plan_on(&h100, 4);
  const auto json = nlohmann::json::parse(plan_json(plan, Sections::all()));
  EXPECT_EQ(json["version"], kPlanJsonVersion);
  EXPECT_EQ(json["step_seconds"], plan.step_time->seconds);
  EXPECT_EQ(json["worst_rank"]["bytes"], plan.largest_memory_bytes());
  EXPECT_EQ(json["hardware"]["name"], "h100-8x");
  EXPECT_EQ(json["hardware"]["measured"], false);
  EXPECT_GT(json["mfu"], json["mfu_causal"]);
  EXPECT_TRUE(json["fits"]);
  const auto without = nlohmann::json::parse(plan_json(plan_on(nullptr, 4), Sections::all()));
  EXPECT_FALSE(without.contains("step_seconds"));
  EXPECT_EQ(explain_answer(plan_on(nullptr, 4)).find("step  "), std::string::npos);
}

}  // namespace
}  // namespace orthant::answer_test
