// The bytes of a plan with sharded states equal the published formulas, with P parameters on N ranks, m microbatches,
// weights of w bytes, gradients of g, state of o, r bytes reduced and a bytes gathered for each parameter:
//   memory of the states   stage 0: P (w + g + o)          stage 1: P (w + g) + P o / N
//                          stage 2: P w + P (g + o) / N    stage 3: P (w + g + o) / N
//   sent by a rank, in units of (N - 1)/N P
//     stage 0: 2 r      stage 1: r + a      stage 2: m r + a
//     stage 3: m (r + 2 a) with reshard microbatch, m (r + a) with never, r + a with step
//   With R copies of the sharded states (HSDP), N is the number of ranks of one copy, and a rank sends
//   2 (R - 1)/R P/N r in addition.
// Rajbhandari et al. 2020, "ZeRO", arXiv 1910.02054, sections 5 and 7.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>

#include "advice/advised_plan.h"
#include "config/from_config.h"

namespace orthant::zero_plan_test {
namespace {

using Words = std::vector<std::string>;
constexpr double kGiB = 1 << 30;

// Llama 3 8B: 8,030,261,248 parameters.
Plan llama(int ranks, int stage, const std::string& dtype, const Words& more = {}) {
  Words words = {"model.hidden_size=4096",      "model.intermediate_size=14336",
                 "model.num_hidden_layers=32",  "model.num_attention_heads=32",
                 "model.num_key_value_heads=8", "model.vocab_size=128256",
                 "training.seq_len=64",         "training.local_batch_size=1",
                 "training.dtype=" + dtype,     fmt::format("run.ranks={}", ranks),
                 fmt::format("parallelism.zero_stage={}", stage),
                 fmt::format("training.global_batch_size={}", ranks)};
  words.insert(words.end(), more.begin(), more.end());
  return make_plan(parse_config("", "run.toml", words), {.ranks = ranks, .vocab_size = 128256});
}

double states_gib(const MemoryBytes& m) {
  return static_cast<double>(m.parameters + m.gradients + m.optimizer) / kGiB;
}

// Bytes that the rank sends for gradients and weights.
int64_t state_traffic(const Plan& plan, int rank) {
  int64_t bytes = 0;
  for (const auto& entry : plan.communication) {
    if (entry.kind == CommunicationKind::gradients || entry.kind == CommunicationKind::weights)
      bytes += plan.bytes_of(entry, rank);
  }
  return bytes;
}
int64_t copies_traffic(const Plan& plan, int rank) {
  int64_t bytes = 0;
  for (const auto& entry : plan.communication) {
    if (entry.kind == CommunicationKind::gradients_of_copies) bytes += plan.bytes_of(entry, rank);
  }
  return bytes;
}

struct Golden {
  int ranks, stage;
  const char* dtype;
  double states, sent;  // GiB
  Words more = {};
};
const Words kMicrobatch = {"parallelism.zero_reshard=microbatch"}, kNever = {"parallelism.zero_reshard=never"};
Words eight_microbatches(int ranks, Words more = {}) {
  more.push_back(fmt::format("training.global_batch_size={}", 8 * ranks));
  return more;
}

TEST(ZeroPlan, HasTheGoldenBytesOfLlama3) {
  for (const Golden& g :
       {Golden{8, 0, "bfloat16", 134.62, 52.35}, Golden{8, 1, "bfloat16", 56.09, 39.26},
        Golden{64, 0, "bfloat16", 134.62, 58.90}, Golden{64, 1, "bfloat16", 46.27, 44.17},
        Golden{8, 0, "float32", 119.66, 52.35}, Golden{8, 1, "float32", 67.31, 52.35},
        Golden{64, 0, "float32", 119.66, 58.90}, Golden{64, 1, "float32", 60.76, 58.90},
        Golden{8, 2, "bfloat16", 29.92, 39.26}, Golden{64, 2, "bfloat16", 16.83, 44.17},
        Golden{8, 2, "float32", 41.13, 52.35}, Golden{64, 2, "float32", 31.32, 58.90},
        Golden{8, 3, "bfloat16", 16.83, 52.35, kMicrobatch}, Golden{64, 3, "bfloat16", 2.10, 58.90, kMicrobatch},
        Golden{8, 3, "float32", 14.96, 78.53, kMicrobatch}, Golden{64, 3, "float32", 1.87, 88.34, kMicrobatch},
        Golden{8, 2, "bfloat16", 29.92, 222.49, eight_microbatches(8)},
        Golden{64, 2, "bfloat16", 16.83, 250.30, eight_microbatches(64)},
        Golden{8, 3, "bfloat16", 16.83, 418.81, eight_microbatches(8, kMicrobatch)},
        Golden{64, 3, "bfloat16", 2.10, 471.16, eight_microbatches(64, kMicrobatch)},
        Golden{8, 3, "bfloat16", 16.83, 314.11, eight_microbatches(8, kNever)},
        Golden{64, 3, "bfloat16", 2.10, 353.37, eight_microbatches(64, kNever)},
        Golden{8, 3, "bfloat16", 16.83, 39.26, eight_microbatches(8)},
        Golden{64, 3, "bfloat16", 2.10, 44.17, eight_microbatches(64)}}) {
    const Plan plan = llama(g.ranks, g.stage, g.dtype, g.more);
    for (int rank = 0; rank < plan.mesh.size(); ++rank) {
      const std::string what = fmt::format("{} ranks, stage {}, {}, rank {}", g.ranks, g.stage, g.dtype, rank);
      EXPECT_NEAR(states_gib(plan.memory_of(rank)), g.states, 0.0051) << what;
      EXPECT_NEAR(static_cast<double>(state_traffic(plan, rank)) / kGiB, g.sent, 0.0051) << what;
    }
  }
}

TEST(ZeroPlan, HasTheGoldenBytesOfLlama3WithCopies) {
  const Plan plan = llama(32, 3, "bfloat16",
                          {"parallelism.zero_reshard=microbatch", "parallelism.data_parallel_replicate_degree=4"});
  EXPECT_EQ(to_string(plan.mesh), "[column 1, row 1, depth 1, ulysses 1, ring 1, data 8, replica 4, pipeline 1]");
  for (int rank = 0; rank < plan.mesh.size(); ++rank) {
    EXPECT_NEAR(states_gib(plan.memory_of(rank)), 16.83, 0.0051) << rank;
    EXPECT_NEAR(static_cast<double>(state_traffic(plan, rank)) / kGiB, 52.35, 0.0051) << rank;
    EXPECT_NEAR(static_cast<double>(copies_traffic(plan, rank)) / kGiB, 5.61, 0.0051) << rank;
  }
}

// Over all ranks the bytes are exact: those of each copy by itself, and the sums over the copies once a step.
TEST(ZeroPlan, SendsTheFormulaExactlyWithCopies) {
  struct Stage {
    int stage;
    Words keys;
    int64_t bytes;  // for each parameter and other rank of the copy, with 2 microbatches
  };
  const std::vector<Stage> stages = {
      {1, {}, 4 + 2}, {2, {}, 2 * 4 + 2}, {3, {}, 4 + 2}, {3, kMicrobatch, 2 * (4 + 4)}, {3, kNever, 2 * (4 + 2)}};
  for (const int pipeline : {1, 2}) {
    for (const auto& [shards, copies] : {std::pair{2, 2}, {3, 2}, {2, 3}, {1, 2}}) {
      for (const Stage& stage : stages) {
        if (stage.keys == kNever && pipeline > 1) continue;  // as in SendsTheFormulaExactly
        const int ranks = shards * copies * pipeline;
        Words more = {fmt::format("parallelism.pipeline_parallel_degree={}", pipeline),
                      fmt::format("parallelism.data_parallel_shard_degree={}", shards),
                      fmt::format("training.global_batch_size={}", shards * copies * 2),
                      "model.hidden_size=72", "model.intermediate_size=100", "model.num_attention_heads=4",
                      "model.num_key_value_heads=4", "model.num_hidden_layers=4", "parallelism.bucket_mib=0.1"};
        more.insert(more.end(), stage.keys.begin(), stage.keys.end());
        const Plan plan = llama(ranks, stage.stage, "bfloat16", more);
        int64_t in_copies = 0, over_copies = 0, elements = 0;
        for (int rank = 0; rank < ranks; ++rank) {
          in_copies += state_traffic(plan, rank);
          over_copies += copies_traffic(plan, rank);
          for (const GradientBucket& bucket : plan.buckets_of(rank)) elements += bucket.elements.size();
        }
        const int64_t parameters = elements / shards / copies;  // of all stages
        const std::string what = fmt::format("stage {}, {} x {} x {}, {}", stage.stage, shards, copies, pipeline,
                                             fmt::join(stage.keys, " "));
        EXPECT_EQ(in_copies, copies * (shards - 1) * parameters * stage.bytes) << what;
        EXPECT_EQ(over_copies, 2 * (copies - 1) * parameters * 4) << what;
      }
    }
  }
}

// A stage that is split into units counts as one forward before FINALIZE, which then comes as late as without ZeRO. On
// the last rank only the unit with the loss writes gradients, so its other units come before FINALIZE.
TEST(ZeroPlan, UnitsDoNotMoveTheNormOfThePreviousStep) {
  const auto forwards_before_finalize = [](int stage) {
    const Plan plan = llama(8, stage, "bfloat16",
                            {"parallelism.pipeline_parallel_degree=4", "training.global_batch_size=16",
                             "parallelism.pipeline_parallel_post_validation=true", "model.hidden_size=64",
                             "model.intermediate_size=64", "model.num_hidden_layers=8", "model.num_attention_heads=4",
                             "model.num_key_value_heads=4"});
    std::vector<int64_t> counts;
    for (const auto& row : plan.schedule.rows) {
      const auto end = std::ranges::find(row, ActionKind::FINALIZE, &Action::kind);
      counts.push_back(std::count_if(row.begin(), end, [&](const Action& action) {
        return action.kind == ActionKind::F && !plan.stages[static_cast<size_t>(action.stage)].continues;
      }));
    }
    return counts;
  };
  EXPECT_EQ(forwards_before_finalize(0), (std::vector<int64_t>{4, 3, 2, 0}));
  EXPECT_EQ(forwards_before_finalize(2), (std::vector<int64_t>{4, 3, 2, 1}));
}

// With Muon a matrix has one owner. On 8 ranks no rank has 5 % more state than the mean, on 64 ranks none more than the
// mean and one matrix of the MLP with its embedding rows.
TEST(ZeroPlan, BalancesTheMatricesOfMuon) {
  for (const int ranks : {8, 64}) {
    const Plan plan = llama(ranks, 1, "bfloat16", {"optimizer.name=muon"});
    int64_t sum = 0, most = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      sum += plan.memory_of(rank).optimizer;
      most = std::max(most, plan.memory_of(rank).optimizer);
    }
    const int64_t mean = sum / ranks, matrix = int64_t{4096} * 14336 * 4;
    EXPECT_LE(most, ranks == 8 ? mean * 21 / 20 : mean + matrix) << ranks << " ranks";
  }
}

// Over all ranks the bytes equal the formula exactly, and each rank's to within a block for each call, however uneven
// the chunks are, for any number of microbatches, and in each stage of a pipeline. A 1f1b pipeline holds a second
// microbatch before the first backward, so with reshard never it gathers less often than the formula.
TEST(ZeroPlan, SendsTheFormulaExactly) {
  struct Stage {
    int stage;
    Words keys;
    std::function<int64_t(int64_t microbatches)> bytes;  // for each parameter and other replica; r = 4, a = 2
  };
  const std::vector<Stage> stages = {{1, {}, [](int64_t) { return 4 + 2; }},
                                     {2, {}, [](int64_t m) { return 4 * m + 2; }},
                                     {3, {}, [](int64_t) { return 4 + 2; }},
                                     {3, kMicrobatch, [](int64_t m) { return m * (4 + 2 * 2); }},
                                     {3, kNever, [](int64_t m) { return m * (4 + 2); }}};
  for (const int microbatches : {1, 2, 8}) {
    for (const int pipeline : {1, 2}) {
      for (const int replicas : {2, 3, 8}) {
        for (const Stage& stage : stages) {
          if (stage.keys == kNever && pipeline > 1 && microbatches > 1) continue;
          const int ranks = replicas * pipeline;
          Words more = {fmt::format("parallelism.pipeline_parallel_degree={}", pipeline),
                        fmt::format("training.global_batch_size={}", replicas * microbatches),
                        "model.hidden_size=72", "model.intermediate_size=100", "model.num_attention_heads=4",
                        "model.num_key_value_heads=4", "model.num_hidden_layers=4", "parallelism.bucket_mib=0.1"};
          const Plan whole = llama(ranks, 0, "bfloat16", more);
          more.insert(more.end(), stage.keys.begin(), stage.keys.end());
          const Plan sharded = llama(ranks, stage.stage, "bfloat16", more);
          int64_t before = 0, sent = 0, elements = 0;
          int64_t least = INT64_MAX, most = 0;
          for (int rank = 0; rank < ranks; ++rank) {
            const int64_t of_rank = state_traffic(sharded, rank);
            least = std::min(least, of_rank), most = std::max(most, of_rank);
            before += state_traffic(whole, rank);
            sent += of_rank;
            for (const GradientBucket& bucket : sharded.buckets_of(rank)) elements += bucket.elements.size();
          }
          const int64_t parameters = elements / replicas, bytes = stage.bytes(microbatches);  // of all stages
          const std::string what = fmt::format("stage {}, {} x {}, {} microbatches, {}", stage.stage, replicas,
                                               pipeline, microbatches, fmt::join(stage.keys, " "));
          EXPECT_EQ(before, 2 * (replicas - 1) * parameters * 4) << what;
          EXPECT_EQ(sent, (replicas - 1) * parameters * bytes) << what;
          // The ranks of one stage differ by at most a block of 256 elements in each bucket.
          const auto buckets = static_cast<int64_t>(sharded.buckets.size());
          if (pipeline == 1) {
            EXPECT_LE(most - least, buckets * 256 * bytes) << what;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace orthant::zero_plan_test
