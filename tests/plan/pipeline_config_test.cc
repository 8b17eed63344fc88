// Pipelines that a run file may ask for, and the refusals of those that it may not.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "advice/advised_plan.h"
#include "base/errors.h"
#include "config/parallelism_check.h"
#include "parallel/pipeline/plan.h"
#include "plan/plan.h"
#include "tests/support/says.h"
#include "tests/support/temp_folder.h"

namespace orthant::pipeline_config_test {
namespace {

using Words = std::vector<std::string>;

Plan plan_of(int ranks, const Words& keys, const Words& more = {}) {
  Words words = {"model.hidden_size=32",     "model.num_attention_heads=4",   "model.num_key_value_heads=2",
                 "model.num_hidden_layers=8", "training.global_batch_size=8", "training.local_batch_size=1",
                 "training.seq_len=32",      "data.path=text.txt",            fmt::format("run.ranks={}", ranks)};
  for (const std::string& key : keys) words.push_back("parallelism." + key);
  words.insert(words.end(), more.begin(), more.end());
  const Config config = parse_config("", "run.toml", words);
  check_with_advice(config);
  return advised_plan(config, {.ranks = ranks, .vocab_size = 257});
}

Words of(const std::string& schedule, int degree, const Words& more = {}) {
  Words words = {fmt::format("pipeline_parallel_degree={}", degree), "pipeline_parallel_schedule=" + schedule};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

std::string refusal(int ranks, const Words& keys, const Words& more = {}) {
  return message_of<ConfigError>([&] { plan_of(ranks, keys, more); });
}

TEST(PipelineConfig, EveryScheduleIsOne) {
  for (const PipelineSchedule& schedule : pipeline_schedules()) {
    const Plan plan = plan_of(4, of(std::string(schedule.name), 4));
    EXPECT_EQ(plan.stages.size(), static_cast<size_t>(4 * schedule.stages_per_rank)) << schedule.name;
    EXPECT_EQ(plan.mesh_text(), "pipeline 4");
  }
  EXPECT_EQ(plan_of(4, of("interleaved_1f1b", -1, {"data_parallel_degree=2", "pipeline_parallel_stages_per_rank=4"}))
                .stages.size(),
            8u);
  EXPECT_TRUE(says(refusal(4, of("zb_z", 4)), {"parallelism.pipeline_parallel_schedule", "dual_pipe_v", "FILE.csv"}));
}

TEST(PipelineConfig, StagesMayBeMoreThanLayers) {
  EXPECT_EQ(refusal(9, of("1f1b", 9)), "");
  EXPECT_EQ(refusal(5, of("zb_v", 5)), "");
  EXPECT_EQ(refusal(2, of("interleaved_1f1b", 2, {"pipeline_parallel_stages_per_rank=8"})), "");
}

TEST(PipelineConfig, StagesOfARankAreAtMostAsManyAsLayers) {
  for (const char* stages : {"50", "9223372036854775807"}) {
    const std::string setting = fmt::format("pipeline_parallel_stages_per_rank={}", stages);
    EXPECT_TRUE(says(refusal(2, of("interleaved_1f1b", 2, {setting})),
                     {fmt::format("pipeline_parallel_stages_per_rank = {}", stages),
                      "must be at most model.num_hidden_layers = 8", "; set it to "}))
        << stages;
  }
  EXPECT_TRUE(says(refusal(4, of("zb_h1", 4, {"pipeline_parallel_stages_per_rank=2"})),
                   {"pipeline_parallel_stages_per_rank = 2", "must be 0 or 1 with", "set it to 1"}));
  EXPECT_TRUE(says(refusal(4, of("interleaved_1f1b", 4, {"pipeline_parallel_stages_per_rank=-1"})),
                   {"pipeline_parallel_stages_per_rank = -1", "must be at least 0"}));
}

TEST(PipelineConfig, LayersByHandHaveToBeAllOfThemAndThoseOfEachStage) {
  const auto by_hand = [](const std::string& layers) {
    return refusal(4, of("1f1b", 4, {"pipeline_parallel_layers=" + layers}));
  };
  const std::string key = "parallelism.pipeline_parallel_layers = ";
  EXPECT_EQ(by_hand("5,0,1,2"), "");
  EXPECT_TRUE(says(by_hand("4,2,2"), {key, "must name all 4 stages, not 3; set it to [] or [-1]"}));
  EXPECT_TRUE(says(by_hand("4,2,2,1"), {key, "must add up to model.num_hidden_layers = 8 (command line), not to 9"}));
  // The sum is 8, but a stage would have -1 layers.
  EXPECT_TRUE(says(by_hand("4,3,-1,2"), {key, "must have 0 layers or more for each stage; [-1] alone"}));
  EXPECT_TRUE(says(by_hand("-2"), {key, "must be at least -1"}));
  EXPECT_TRUE(
      says(refusal(4, of("zb_v", 4, {"pipeline_parallel_layers=2,2,2,2"})), {key, "must name all 8 stages, not 4"}));
  EXPECT_TRUE(says(refusal(3, of("1f1b", 3, {"pipeline_parallel_layers=9223372036854775807,9223372036854775807,10"})),
                   {"pipeline_parallel_layers", "must add up to model.num_hidden_layers = 8"}));
}

TEST(PipelineConfig, MorePassesThanTablesHoldAreRefused) {
  const auto plan = [](int64_t batch) {
    return refusal(2, of("interleaved_1f1b", 2, {"pipeline_parallel_stages_per_rank=64"}),
                   {"model.num_hidden_layers=128", fmt::format("training.global_batch_size={}", batch)});
  };
  EXPECT_TRUE(says(plan(40000), {"interleaved_1f1b", "training.global_batch_size = 40000", "training.local_batch_size",
                                 "stages x microbatches = 128 x 40000 must be at most 4194304"}));
}

TEST(PipelineConfig, AFilesMistakesAreNamed) {
  const TempFolder folder;
  const auto of_file = [&](const std::string& csv, const Words& more = {}) {
    return refusal(2, of(folder.write("mine.csv", csv), 2), more);
  };
  const Words two = {"training.global_batch_size=2"};
  const std::string key = "parallelism.pipeline_parallel_schedule = \"" + folder / "mine.csv" + "\" (command line): ";
  EXPECT_EQ(of_file("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n", two), "");
  EXPECT_EQ(of_file("0F0,0SEND_F0,0RECV_B0,0B0\n1F0,1B0,1SEND_B0\n", {"training.global_batch_size=1"}),
            key + "the schedule cannot be carried out:\n  1RECV_F0 is missing before 1F0 (line 2, cell 1), for "
                  "0SEND_F0 (line 1, cell 2)");
  EXPECT_TRUE(says(of_file("0F0,0B0\n1F0,1B0\n", two),
                   {key, "for 1 microbatch (0F0 in line 1, cell 1), but training.global_batch_size = 2 (command line)",
                    "training.local_batch_size = 1 (command line) make 2; set training.global_batch_size to 1, or "
                    "training.local_batch_size to 2"}));
  // Each of two data ranks has four microbatches of one sequence, but the file has three.
  const std::string three = folder.write("three.csv", "0F0,0F1,0F2,0B0,0B1,0B2\n1F0,1B0,1F1,1B1,1F2,1B2\n");
  EXPECT_TRUE(says(refusal(4, of(three, 2)), {"for 3 microbatches", "make 4; set training.global_batch_size to 6"}));
  EXPECT_EQ(refusal(4, of(three, 2), {"training.global_batch_size=6"}), "");
  EXPECT_TRUE(says(of_file("0F0,0B0\n", two), {key, "one line for each of 2 pipeline ranks, but it has 1"}));
  EXPECT_TRUE(says(of_file("0F0,0Q0\n1F0,1B0\n", two), {key, "line 1, cell 2", "unknown kind 'Q'"}));
  EXPECT_TRUE(says(of_file("0F0,0F1,0B0,0B1\n\n", two), {key, "line 2 has no Action"}));
  const Words short_model = {two[0], "model.num_hidden_layers=1"};  // the second stage has no layers
  EXPECT_EQ(of_file("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n", short_model), "");
  EXPECT_EQ(of_file("0UNSHARD,0F0,0F1,0B0,0B1,0RESHARD,0REDUCE_GRAD\n1F0,1B0,1F1,1B1,1STEP\n", two), "");
  EXPECT_TRUE(says(refusal(2, of("nowhere.csv", 2)),
                   {"nowhere.csv", "there is no such file", "; name an existing CSV file or one of gpipe, 1f1b, "}));
  std::filesystem::create_directory(folder / "folder.csv");
  EXPECT_TRUE(says(refusal(2, of(folder / "folder.csv", 2)),
                   {"folder.csv", "must name a CSV file, but it names a folder or device"}));
}

TEST(PipelineConfig, PostValidation) {
  const std::string key = "pipeline_parallel_post_validation=true";
  const Plan plain = plan_of(4, of("zb_h2", 4)), post = plan_of(4, of("zb_h2", 4, {key}));
  const Plan sgd = plan_of(4, of("zb_h2", 4, {key}), {"optimizer.name=sgd"});
  for (int rank = 0; rank < 4; ++rank) {
    const auto& row = post.row(rank);
    EXPECT_EQ(row.size(), plain.row(rank).size() + 2);
    EXPECT_EQ(row.back().kind, ActionKind::STEP);
    // Post-validation keeps float32 copies of the weights and both moments on every rank but the last.
    const int64_t copies = rank == 3 ? 0 : 3 * plain.memory_of(rank).parameters;
    EXPECT_EQ(post.memory_of(rank).optimizer, plain.memory_of(rank).optimizer + copies);
    EXPECT_EQ(sgd.memory_of(rank).optimizer, (rank == 3 ? 1 : 3) * plain.memory_of(rank).parameters);
    EXPECT_EQ(post.memory_of(rank).activations, plain.memory_of(rank).activations);
  }
  EXPECT_EQ(post.timeline.makespan, plain.timeline.makespan);
  int64_t sends = 0;
  for (const CommunicationEntry& entry : post.communication) {
    EXPECT_NE(entry.collective, "all_reduce") << entry.what;
    if (!entry.what.starts_with("loss, gradient norm") || entry.collective != "send") continue;
    for (int rank = 0; rank < 4; ++rank) {
      EXPECT_EQ(post.bytes_of(entry, rank), StepSignals::kBytes * post.calls_of(entry, rank));
      sends += post.calls_of(entry, rank);
    }
  }
  EXPECT_EQ(sends, 3 + 3);
}

// While a degree is 1, the keys that configure its ranks have no effect: the plan is the one without them, and says so.
// So one degree can be varied alone. Control: with 2 ranks they have an effect.
TEST(PipelineConfig, SettingsOfADegreeOfOneHaveNoEffect) {
  struct Idle {
    std::string setting, degree;
  };
  const std::string pipeline = "pipeline_parallel_degree", ring = "context_parallel_ring";
  for (const auto& [setting, degree] : std::vector<Idle>{{"tensor_parallel_sequence=false", "tensor_parallel_degree"},
                                                         {"context_parallel_attention=ring_self_attention", ring},
                                                         {"context_parallel_placement=stripe", ring},
                                                         {"context_parallel_window=2", ring},
                                                         {"pipeline_parallel_schedule=gpipe", pipeline},
                                                         {"pipeline_parallel_schedule=zb_v", pipeline},
                                                         {"vocabulary_parallel=algorithm_2", pipeline},
                                                         {"pipeline_parallel_post_validation=true", pipeline}}) {
    // The degree is 1 because it is given as 1, or because no ranks are left for it.
    for (const Words& one : {Words{}, Words{"data_parallel_degree=2", degree + "=-1"}}) {
      Words idle = one;
      idle.push_back(setting);
      const Plan plan = plan_of(2, idle), without = plan_of(2, one);
      const std::string key = setting.substr(0, setting.find('='));
      const std::vector<std::string> sentences = idle_settings(plan.given, plan.mesh);
      ASSERT_EQ(sentences.size(), 1u) << setting;
      EXPECT_TRUE(says(sentences[0], {"parallelism." + key, "has no effect", degree + " is 1"})) << setting;
      EXPECT_TRUE(idle_settings(without.given, without.mesh).empty());
      EXPECT_EQ(plan.schedule, without.schedule) << setting;
      EXPECT_EQ(plan.largest_memory_bytes(), without.largest_memory_bytes()) << setting;
      EXPECT_EQ(plan.largest_communication_bytes(), without.largest_communication_bytes()) << setting;
    }
    if (setting == "context_parallel_window=2") continue;  // must divide a larger ring
    const Plan wide = plan_of(2, {degree + "=2", setting});
    EXPECT_TRUE(idle_settings(wide.given, wide.mesh).empty()) << setting;
  }
  // Stages and layers that contradict the degree, and settings that contradict each other, are still refused.
  EXPECT_TRUE(says(refusal(2, {"pipeline_parallel_layers=4,4"}), {"must name all 1 stage, not 2", "set it to []"}));
  EXPECT_EQ(refusal(2, {"pipeline_parallel_layers=8"}), "");
  EXPECT_EQ(refusal(2, {"pipeline_parallel_layers=-1"}), "");
  EXPECT_TRUE(says(refusal(2, {"context_parallel_attention=linformer"}), {"requires Linformer"}));
  EXPECT_TRUE(says(refusal(2, {"context_parallel_reduction=all_reduce"}), {"requires ring_self_attention"}));
}

TEST(PipelineConfig, WhatOtherAxesCannotBeIsStillRefusedByName) {
  EXPECT_TRUE(says(refusal(6, of("1f1b", 4)), {"parallelism.pipeline_parallel_degree = 4", "6 ranks"}));
}

}  // namespace
}  // namespace orthant::pipeline_config_test
