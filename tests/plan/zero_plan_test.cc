// The bytes of a plan with sharded optimizer state equal the published formulas. With P parameters on N replicas,
// weights of w bytes, gradients of g, state of o, r bytes reduced and a bytes gathered for each parameter:
//   memory of the states   stage 0: P (w + g + o)          stage 1: P (w + g) + P o / N
//   sent by a rank         stage 0: 2 (N - 1)/N P r        stage 1: (N - 1)/N P (r + a)
// Rajbhandari et al. 2020, "ZeRO", arXiv 1910.02054, sections 5 and 7.
#include <fmt/format.h>
#include <gtest/gtest.h>

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
int64_t state_traffic(const Plan& plan, size_t rank) {
  int64_t bytes = 0;
  for (const auto& entry : plan.communication) {
    if (entry.what.starts_with("gradients, bucket") || entry.what.starts_with("weights, bucket"))
      bytes += entry.bytes_per_rank[rank];
  }
  return bytes;
}

struct Golden {
  int ranks, stage;
  const char* dtype;
  double states, sent;  // GiB
};

TEST(ZeroPlan, HasTheGoldenBytesOfLlama3) {
  for (const Golden& g :
       {Golden{8, 0, "bfloat16", 134.62, 52.35}, Golden{8, 1, "bfloat16", 56.09, 39.26},
        Golden{64, 0, "bfloat16", 134.62, 58.90}, Golden{64, 1, "bfloat16", 46.27, 44.17},
        Golden{8, 0, "float32", 119.66, 52.35}, Golden{8, 1, "float32", 67.31, 52.35},
        Golden{64, 0, "float32", 119.66, 58.90}, Golden{64, 1, "float32", 60.76, 58.90}}) {
    const Plan plan = llama(g.ranks, g.stage, g.dtype);
    for (size_t rank = 0; rank < plan.memory.size(); ++rank) {
      const std::string what = fmt::format("{} ranks, stage {}, {}, rank {}", g.ranks, g.stage, g.dtype, rank);
      EXPECT_NEAR(states_gib(plan.memory[rank]), g.states, 0.0051) << what;
      EXPECT_NEAR(static_cast<double>(state_traffic(plan, rank)) / kGiB, g.sent, 0.0051) << what;
    }
  }
}

// With Muon a matrix has one owner. On 8 ranks no rank has 5 % more state than the mean, on 64 ranks none more than the
// mean and one matrix of the MLP with its embedding rows.
TEST(ZeroPlan, BalancesTheMatricesOfMuon) {
  for (const int ranks : {8, 64}) {
    const Plan plan = llama(ranks, 1, "bfloat16", {"optimizer.name=muon"});
    int64_t sum = 0, most = 0;
    for (const MemoryBytes& m : plan.memory) sum += m.optimizer, most = std::max(most, m.optimizer);
    const int64_t mean = sum / ranks, matrix = int64_t{4096} * 14336 * 4;
    EXPECT_LE(most, ranks == 8 ? mean * 21 / 20 : mean + matrix) << ranks << " ranks";
  }
}

// Over all ranks the bytes equal the formula exactly, and each rank's to within a block, however uneven the chunks are,
// for any number of microbatches, and in each stage of a pipeline.
TEST(ZeroPlan, SendsTheFormulaExactly) {
  for (const int microbatches : {1, 2, 8}) {
    for (const int pipeline : {1, 2}) {
      for (const int replicas : {2, 3, 8}) {
        const int ranks = replicas * pipeline;
        const Words more = {fmt::format("parallelism.pipeline_parallel_degree={}", pipeline),
                            fmt::format("training.global_batch_size={}", replicas * microbatches),
                            "model.hidden_size=72", "model.intermediate_size=100", "model.num_attention_heads=4",
                            "model.num_key_value_heads=4", "model.num_hidden_layers=4", "parallelism.bucket_mib=0.1"};
        const Plan whole = llama(ranks, 0, "bfloat16", more), sharded = llama(ranks, 1, "bfloat16", more);
        int64_t before = 0, sent = 0, elements = 0;
        int64_t least = INT64_MAX, most = 0;
        for (int rank = 0; rank < ranks; ++rank) {
          const int64_t of_rank = state_traffic(sharded, static_cast<size_t>(rank));
          least = std::min(least, of_rank), most = std::max(most, of_rank);
          before += state_traffic(whole, static_cast<size_t>(rank));
          sent += of_rank;
          for (const GradientBucket& bucket : sharded.buckets_of(rank)) elements += bucket.elements.size();
        }
        const int64_t parameters = elements / replicas;  // of all stages
        EXPECT_EQ(before, 2 * (replicas - 1) * parameters * 4) << replicas << " x " << pipeline;
        EXPECT_EQ(sent, (replicas - 1) * parameters * (4 + 2)) << replicas << " x " << pipeline;
        // The ranks of one stage differ by at most a block of 256 elements in each bucket.
        const auto buckets = static_cast<int64_t>(sharded.buckets.size());
        if (pipeline == 1) {
          EXPECT_LE(most - least, buckets * 256 * (4 + 2)) << replicas;
        }
      }
    }
  }
}

}  // namespace
}  // namespace orthant::zero_plan_test
