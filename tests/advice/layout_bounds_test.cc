// Bounds of time and memory are bounds, for every layout of a small space. Controls: they are not trivial, and 1.3
// times the bound of the time is no bound.
#include "advice/layout_bounds.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>

#include "advice/zero_choices.h"
#include "base/errors.h"
#include "parallel/pipeline/plan.h"
#include "tests/support/searched_layouts.h"

namespace orthant::layout_bounds_test {
namespace {

using namespace searched_layouts;

// The bounds of the layout's order of passes, as the search makes them before it chooses the stage of ZeRO.
LayoutBounds bounds_of(Config config, const RunFacts& facts, const ModelParameters& parameters) {
  set_zero(config.parallelism, 0);
  config.parallelism.data_parallel_replicate_degree = ParallelismConfig().data_parallel_replicate_degree;
  return LayoutBounds(config, facts, parameters);
}

// The bound of the step time as a fraction of the planned step time.
double time_share(const Config& config, const RunFacts& facts) {
  const ModelParameters parameters(config, facts);
  return bounds_of(config, facts, parameters).step_seconds(config) / make_plan(config, facts).step_time->seconds;
}

TEST(LayoutBounds, AreBounds) {
  const RunFacts facts = facts_on(h100_of(80), 4);
  double nearest_time = 0, nearest_memory = 0;
  int64_t planned = 0;
  for (const Words& words : std::vector<Words>{
           {"parallelism.pipeline_parallel_schedule=1f1b"},
           {"parallelism.pipeline_parallel_schedule=zb_v", "parallelism.vocabulary_parallel=algorithm_2"},
           {"parallelism.pipeline_parallel_schedule=zb_h1", "parallelism.vocabulary_parallel=redistribution"},
           {"training.global_batch_size=7", "training.local_batch_size=2"},
           // messages that are large compared with the gradients of a block
           {"parallelism.pipeline_parallel_schedule=interleaved_1f1b", "model.hidden_size=256",
            "model.intermediate_size=512", "model.head_dim=16", "model.max_position_embeddings=32768",
            "training.seq_len=32768"},
           {"model.positions=learned", "parallelism.vocabulary_parallel=algorithm_1"},
           {"model.tie_word_embeddings=true"},
           {"training.dtype=float32", "optimizer.name=muon"},
           // projections that are most of the parameters, and are sharded over the ring as well
           {"model.objective=masked", "model.linformer_length=1024", "parallelism.context_parallel_attention=linformer",
            "parallelism.context_parallel_placement=contiguous", "model.hidden_size=256", "model.intermediate_size=512",
            "model.head_dim=16", "model.num_hidden_layers=24", "model.vocab_size=0"}}) {
    Config base = config_of(4);
    base = parse_config(print_config(base), "run.toml", words);
    const int64_t before = planned;
    for_each_layout(base, [&](const Config& config) {
      try {
        const Plan plan = make_plan(config, facts);
        const ModelParameters parameters(config, facts);
        LayoutBounds bounds = bounds_of(config, facts, parameters);
        const double seconds =
            std::max(step_seconds_bound(config, facts), bounds.step_seconds(config)) / plan.step_time->seconds;
        const double memory =
            static_cast<double>(bounds.memory_bytes(config)) / static_cast<double>(plan.largest_memory_bytes());
        EXPECT_LE(state_bytes_bound(config, facts, parameters), plan.largest_memory_bytes()) << plan.mesh_and_kind();
        EXPECT_LE(seconds, 1) << plan.mesh_and_kind() << " " << words.front();
        EXPECT_LE(memory, 1) << plan.mesh_and_kind() << " " << words.front();
        nearest_time = std::max(nearest_time, seconds), nearest_memory = std::max(nearest_memory, memory);
        ++planned;
      } catch (const ConfigError&) {  // this layout is illegal
      }
    });
    EXPECT_GT(planned, before) << words.front();
  }
  EXPECT_GT(planned, 500);
  EXPECT_GT(1.3 * nearest_time, 1);
  EXPECT_GT(3 * nearest_memory, 1);
}

// With slow links, the messages of gradients and of sharded weights take most of a step. Control: the bound is
// more than 90 % of the longest such step with every stage of ZeRO.
TEST(LayoutBounds, AreBoundsWithSlowLinks) {
  Hardware hardware = h100_of(80);
  hardware.same_host.bytes_per_s /= 200;
  for (const char* optimizer : {"adamw", "muon"}) {
    for (const double bucket_mib : {1.0, 25.0}) {
      RunFacts facts = facts_on(hardware, 4);
      facts.vocab_size = 1024;
      Config base =
          config_of(4, {std::string("optimizer.name=") + optimizer, "training.dtype=float32", "model.vocab_size=1024"});
      base.parallelism.bucket_mib = bucket_mib;
      std::map<std::string, double> nearest;  // by ZeRO
      for_each_layout(base, [&](const Config& config) {
        try {
          const double share = time_share(config, facts);
          EXPECT_LE(share, 1) << make_plan(config, facts).mesh_and_kind() << " " << optimizer << " " << bucket_mib;
          double& near = nearest[fmt::format("{} {}", config.parallelism.zero_stage, config.parallelism.zero_reshard)];
          near = std::max(near, share);
        } catch (const ConfigError&) {  // this layout is illegal
        }
      });
      EXPECT_EQ(nearest.size(), 6u);
      for (const auto& [zero, share] : nearest) {
        EXPECT_TRUE(share > 0.9 || optimizer == std::string("muon")) << zero << " " << share;
      }
    }
  }
}

// Copies of sharded states; hosts whose ranks are no multiple of a pipeline rank's; groups over many hosts and a
// vocabulary that all pipeline ranks share, where latency counts most; and steps that overlap. Control: with each of
// them the bound is near the step.
TEST(LayoutBounds, AreBoundsOfOtherMeshes) {
  Hardware hosts_of_3 = h100_of(80);
  hosts_of_3.device.per_host = 3;
  struct Case {
    int ranks;
    Words words;
    double nearest = 0;
  };
  for (Case run :
       std::vector<Case>{{8, {"parallelism.data_parallel_replicate_degree=2"}},
                         {8, {"parallelism.data_parallel_replicate_degree=2", "parallelism.tensor_parallel_degree=2"}},
                         {8, {"parallelism.pipeline_parallel_degree=2", "parallelism.context_parallel_ring=2"}},
                         {8, {"parallelism.pipeline_parallel_degree=2", "parallelism.outer_axis=data"}},
                         {128,
                          {"parallelism.pipeline_parallel_degree=2", "parallelism.vocabulary_parallel=algorithm_1",
                           "model.vocab_size=256000", "model.hidden_size=512", "model.intermediate_size=1536",
                           "model.head_dim=32", "model.num_hidden_layers=4", "training.seq_len=128",
                           "training.global_batch_size=64", "parallelism.bucket_mib=4"}},
                         {8,
                          {"parallelism.pipeline_parallel_degree=8", "parallelism.pipeline_parallel_schedule=zb_h2",
                           "parallelism.pipeline_parallel_post_validation=true", "model.num_hidden_layers=16",
                           "model.hidden_size=4096", "model.intermediate_size=14336", "model.num_attention_heads=32",
                           "model.max_position_embeddings=8192", "training.seq_len=8192", "model.vocab_size=1024"}}}) {
    for (const Hardware& hardware : {h100_of(80), hosts_of_3}) {
      for (const char* stage : {"0", "1", "2", "3"}) {
        for (const char* reshard : {"step", "never", "microbatch"}) {
          Words words = run.words;
          words.push_back(std::string("parallelism.zero_stage=") + stage);
          words.push_back(std::string("parallelism.zero_reshard=") + reshard);
          try {
            const Config config = config_of(run.ranks, words);
            RunFacts facts = facts_on(hardware, run.ranks);
            facts.vocab_size = static_cast<int>(config.model.vocab_size);
            const double share = time_share(config, facts);
            EXPECT_LE(share, 1) << run.words.front() << " " << stage << " " << reshard;
            run.nearest = std::max(run.nearest, share);
          } catch (const ConfigError&) {  // this layout is illegal
          }
        }
      }
    }
    EXPECT_GT(run.nearest, 0.5) << run.words.front() << " " << run.ranks;
  }
}

// The pipeline rank with most layers may have none of those that recompute: of five layers in the order of ZB-V, the
// first rank has layers 0, 1 and 4, and every third one is layer 2.
TEST(LayoutBounds, AreBoundsIfSomeLayersRecompute) {
  RunFacts facts = facts_on(h100_of(80), 2);
  facts.vocab_size = 256;
  const Config config =
      config_of(2, {"parallelism.pipeline_parallel_degree=2", "parallelism.pipeline_parallel_schedule=zb_v",
                    "model.num_hidden_layers=5", "model.vocab_size=256", "training.global_batch_size=128",
                    "activation_checkpoint.mode=full", "activation_checkpoint.layers=3"});
  EXPECT_LE(step_seconds_bound(config, facts), make_plan(config, facts).step_time->seconds);
}

// With gradients by unit, a receive may be posted later than without, which counts where messages are larger than the
// gradients of a block.
TEST(LayoutBounds, AreBoundsWithLargeMessages) {
  const RunFacts facts = facts_on(h100_of(80), 8);
  for (const char* stage : {"0", "1", "2", "3"}) {
    const Config config = config_of(
        8, {"model.hidden_size=256", "model.intermediate_size=512", "model.head_dim=16", "model.num_hidden_layers=24",
            "model.max_position_embeddings=131072", "training.seq_len=131072", "activation_checkpoint.mode=full",
            "parallelism.pipeline_parallel_degree=4", "parallelism.pipeline_parallel_schedule=interleaved_1f1b",
            std::string("parallelism.zero_stage=") + stage});
    const ModelParameters parameters(config, facts);
    EXPECT_LE(bounds_of(config, facts, parameters).memory_bytes(config),
              make_plan(config, facts).largest_memory_bytes())
        << stage;
  }
}

// The bound of memory looks at the first microbatches only. It holds for steps of many, in every schedule, and equals
// that of all of them.
TEST(LayoutBounds, AreBoundsWithManyMicrobatches) {
  const RunFacts facts = facts_on(h100_of(80), 4);
  for (const PipelineSchedule& schedule : pipeline_schedules()) {
    for (const char* vocabulary : {"none", "algorithm_2"}) {
      const auto config = [&](int microbatches) {
        return config_of(4, {"parallelism.pipeline_parallel_degree=4", "training.local_batch_size=1",
                             "parallelism.pipeline_parallel_schedule=" + std::string(schedule.name),
                             std::string("parallelism.vocabulary_parallel=") + vocabulary,
                             fmt::format("training.global_batch_size={}", microbatches)});
      };
      const auto bound = [&](int microbatches) {
        const ModelParameters parameters(config(microbatches), facts);
        return LayoutBounds(config(microbatches), facts, parameters).memory_bytes(config(microbatches));
      };
      EXPECT_LE(bound(61), make_plan(config(61), facts).largest_memory_bytes()) << schedule.name << vocabulary;
      EXPECT_GT(bound(16), bound(2)) << schedule.name << vocabulary;
      if (schedule.name != "gpipe") {
        EXPECT_EQ(make_plan(config(16), facts).largest_memory_bytes(),
                  make_plan(config(61), facts).largest_memory_bytes())
            << schedule.name << vocabulary;
      }
    }
  }
}

// Microbatches of a step differ in size by one sequence. Control: with microbatches of the size that the run file asks
// for, the first of them would need more than the run.
TEST(LayoutBounds, AreBoundsWithUnequalMicrobatches) {
  const RunFacts facts = facts_on(h100_of(80), 1);
  for (const auto& [local, global] : {std::pair(8, 33), std::pair(24, 100), std::pair(8, 64)}) {
    const Config config = config_of(
        1, {fmt::format("training.local_batch_size={}", local), fmt::format("training.global_batch_size={}", global)});
    const int64_t bytes = make_plan(config, facts).largest_memory_bytes();
    EXPECT_LE(make_plan(with_few_microbatches(config, facts), facts).largest_memory_bytes(), bytes) << local;
    const ModelParameters parameters(config, facts);
    EXPECT_LE(LayoutBounds(config, facts, parameters).memory_bytes(config), bytes) << local;
    Config naive = config;
    naive.training.global_batch_size = 4 * local;
    EXPECT_EQ(make_plan(naive, facts).largest_memory_bytes() > bytes, global % local != 0) << local;
  }
}

}  // namespace
}  // namespace orthant::layout_bounds_test
