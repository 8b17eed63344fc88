// Sizes at and beyond the limits of planning: a refusal that names them, or a plan whose numbers did not overflow.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>

#include "advice/advised_plan.h"
#include "advice/alternatives.h"
#include "base/errors.h"
#include "parallel/sequence/placement_plan.h"
#include "tests/support/says.h"
#include "tests/support/words.h"

namespace orthant::plan_limits_test {
namespace {

std::string error_of(const Words& overrides, const RunFacts& facts = {.ranks = 2, .vocab_size = 257}) {
  try {
    const Config config = parse_config("", "run.toml", overrides);
    check_with_advice(config);
    const Plan plan = advised_plan(config, facts);
    // All numbers are sums of positive parts, so that an overflow shows as a number that is not positive.
    for (const MemoryBytes& m : plan.memory) {
      for (const int64_t part : {m.parameters, m.gradients, m.optimizer, m.activations, m.working}) EXPECT_GT(part, 0);
      EXPECT_GE(m.total(), m.optimizer);
    }
    for (const auto& other : alternatives_to(plan)) EXPECT_GT(other.memory_bytes, 0) << other.change;
    for (const auto& entry : plan.communication) {
      for (const int64_t bytes : entry.bytes) EXPECT_GT(bytes, 0) << entry.what;
    }
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

TEST(PlanLimits, SizesBeyondTheirOwnLimitAreRefused) {
  for (const char* word :
       {"model.hidden_size=1048577", "model.intermediate_size=4194305", "model.num_hidden_layers=10001",
        "model.num_attention_heads=65537", "model.head_dim=65537", "model.vocab_size=268435457",
        "training.seq_len=134217729", "training.global_batch_size=16777217", "training.local_batch_size=16777217",
        "run.ranks=65537", "run.threads_per_rank=1025", "model.sliding_window=134217729",
        "model.max_position_embeddings=9223372036854775807"}) {
    const std::string key = std::string(word).substr(0, std::string(word).find('='));
    EXPECT_TRUE(says(error_of({word}), {key + " = ", "(command line) must be "})) << word;
  }
}

TEST(PlanLimits, SizesThatOverflowTogetherAreRefusedByName) {
  EXPECT_TRUE(
      says(error_of({"model.hidden_size=1048576", "model.intermediate_size=4194304", "model.num_hidden_layers=10000",
                     "model.num_attention_heads=65536", "model.num_key_value_heads=65536", "model.head_dim=65536"}),
           {"model.hidden_size = 1048576 (command line)", "model.num_hidden_layers = 10000 (command line)",
            " parameters, which must be below 1.8e+16"}));
  EXPECT_TRUE(says(error_of({"training.seq_len=134217728", "model.max_position_embeddings=134217728",
                             "training.global_batch_size=16777216", "training.local_batch_size=16777216"}),
                   {"training.local_batch_size = 16777216", "training.seq_len = 134217728",
                    " activations a microbatch, which must be below 1.8e+16"}));
  EXPECT_TRUE(says(error_of({"training.steps=9000000000000000000"}),
                   {"training.steps = 9000000000000000000",
                    " together make 7.4e+22 tokens, which must be below 4.6e+18; set it to 549316406250000"}));
  EXPECT_TRUE(
      says(error_of({"training.global_batch_size=16777216", "training.local_batch_size=1"}),
           {"training.global_batch_size = 16777216", "training.local_batch_size = 1", "8388608 microbatches a rank"}));
}

// Rows and depth shard the batch, as data ranks do.
TEST(PlanLimits, MicrobatchesAreCountedByAllAxesThatCutTheBatch) {
  const Words batch = {"training.global_batch_size=131072", "training.local_batch_size=1",
                       "parallelism.tensor_parallel_kind=2.5d"};
  const auto on = [&](const char* mesh, int ranks) {
    Words words = batch;
    words.push_back(std::string("parallelism.tensor_parallel_mesh=") + mesh);
    return error_of(words, {.ranks = ranks, .vocab_size = 257});
  };
  EXPECT_TRUE(says(on("[1,2,1]", 2), {"131072 microbatches a rank"}));
  EXPECT_EQ(on("[2,1,8]", 16), "no error");
}

// A degree above the number of ranks is refused before the product of the degrees is computed.
TEST(PlanLimits, DegreesAboveTheRanksAreRefusedByTheirOwnNumber) {
  const std::string key = "parallelism.context_parallel_", data = "parallelism.data_parallel_degree=";
  const RunFacts four{.ranks = 4, .vocab_size = 257};
  EXPECT_EQ(
      error_of({key + "ulysses=4", data + "4611686018427387904"}, four),
      "parallelism.data_parallel_degree = 4611686018427387904 (command line) must be at most the 4 ranks of the run; "
      "set it to 1");
  for (const char* degree : {"4611686018427387905", "9223372036854775807", "65537", "5"}) {
    for (const char* axis : {"ulysses", "ring"}) {
      const std::string error = error_of({key + axis + "=" + degree, data + "2"}, four);
      EXPECT_TRUE(says(error, {key + axis + " = " + degree, "at most the 4 ranks of the run; set it to 2"}));
    }
    EXPECT_TRUE(says(error_of({data + degree}, four), {" = ", degree, "at most the 4 ranks of the run; set it to 4"}));
  }
  EXPECT_TRUE(says(error_of({key + "ring=2147483648", key + "ulysses=2"}, four),
                   {"ring = 2147483648", "at most the 4 ranks of the run; set it to 2"}));
  EXPECT_EQ(error_of({key + "ring=2", key + "ulysses=2", data + "1"}, four), "no error");
}

// Units multiply the passes of a schedule. Too many are refused before they are made.
TEST(PlanLimits, UnitsAreCountedBeforeTheyAreMade) {
  const Words keys = {"model.num_hidden_layers=10000", "model.hidden_size=8", "model.num_attention_heads=1",
                      "model.num_key_value_heads=1", "model.intermediate_size=8", "training.global_batch_size=131072",
                      "training.local_batch_size=1", "parallelism.zero_stage=2"};
  EXPECT_TRUE(says(error_of(keys, {.ranks = 2, .vocab_size = 257}), {"stages x microbatches = 10003 x 65536 must be"}));
}

// The degrees of sharded states must multiply to the data ranks.
TEST(PlanLimits, DegreesOfShardedStatesMultiplyToTheDataRanks) {
  const std::string shard = "parallelism.data_parallel_shard_degree=",
                    replicate = "parallelism.data_parallel_replicate_degree=", zero = "parallelism.zero_stage=1";
  const RunFacts four{.ranks = 4, .vocab_size = 257};
  EXPECT_EQ(error_of({zero, shard + "3"}, four),
            "parallelism.data_parallel_shard_degree = 3 (command line) must divide the 4 data ranks; set it to 2 or 4");
  EXPECT_EQ(error_of({zero, replicate + "9223372036854775807"}, four),
            "parallelism.data_parallel_replicate_degree = 9223372036854775807 (command line) must divide the 4 data "
            "ranks; set it to 0");
  EXPECT_TRUE(says(error_of({zero, shard + "4611686018427387904", replicate + "4"}, four),
                   {"must equal the number of data ranks, 4"}));
  EXPECT_EQ(error_of({zero, shard + "2", replicate + "4"}, four),
            "parallelism.data_parallel_shard_degree = 2 (command line) times "
            "parallelism.data_parallel_replicate_degree = 4 (command line) must equal the number of data ranks, 4; set "
            "it to 1, or parallelism.data_parallel_replicate_degree to 2");
  for (const Words& words : {Words{zero, shard + "1"}, {zero, replicate + "1"}, {zero, shard + "1", replicate + "4"},
                             {zero, shard + "4", replicate + "1"}, {zero, replicate + "2"}}) {
    EXPECT_EQ(error_of(words, four), "no error");
  }
}

// Gradients of several microbatches are added up, so they cannot be updated in backward.
TEST(PlanLimits, AnUpdateInBackwardTakesOneMicrobatch) {
  const Words keys = {"optimizer.in_backward=true", "training.max_norm=0", "training.global_batch_size=8"};
  const RunFacts two{.ranks = 2, .vocab_size = 257};
  EXPECT_EQ(error_of(with(keys, {"training.local_batch_size=2"}), two),
            "optimizer.in_backward = true (command line) requires one microbatch in a step, because the gradients of "
            "several are added up before the update, but training.global_batch_size = 8 (command line) and "
            "training.local_batch_size = 2 (command line) make 2 microbatches on each data shard; set it to "
            "false, or training.local_batch_size to 4");
  EXPECT_NO_THROW(make_plan(parse_config("", "run.toml", with(keys, {"training.local_batch_size=4"})), two));
  EXPECT_EQ(error_of(with(keys, {"training.local_batch_size=4", "parallelism.data_parallel_degree=1",
                                 "parallelism.pipeline_parallel_degree=-1"}),
                     two),
            "optimizer.in_backward = true (command line) requires a pipeline of 1 stage, but "
            "parallelism.pipeline_parallel_degree = -1 (command line) makes 2, because this version does not update in "
            "backward in a pipeline; set it to false");
  // On one pipeline rank, a schedule of several stages has no effect.
  EXPECT_NO_THROW(make_plan(
      parse_config("", "run.toml", with(keys, {"training.local_batch_size=4", "model.tie_word_embeddings=true",
                                               "parallelism.pipeline_parallel_schedule=interleaved_1f1b"})),
      two));
}

// A value that is offered for one degree is legal together with the other degrees.
TEST(PlanLimits, OffersKnowOfTheOtherDegrees) {
  const std::string tensor = "parallelism.tensor_parallel_", ring = "parallelism.context_parallel_ring=";
  const RunFacts three{.ranks = 3, .vocab_size = 257}, four{.ranks = 4, .vocab_size = 257};
  EXPECT_TRUE(says(
      error_of({tensor + "degree=8", ring + "2"}, three),
      {"parallelism.tensor_parallel_degree = 8 (command line) must be at most the 3 ranks of the run",
       "set run.ranks to 16, or parallelism.tensor_parallel_degree to 1 and parallelism.context_parallel_ring to 3"}));
  EXPECT_EQ(error_of({tensor + "degree=1", ring + "3"}, three), "no error");
  EXPECT_TRUE(
      says(error_of({tensor + "kind=2d", tensor + "mesh=3,4,1", ring + "4"}, four),
           {"parallelism.tensor_parallel_mesh = [3, 4, 1] (command line) must be at most the 4 ranks of the run",
            "set it to [1, 4, 1] and parallelism.context_parallel_ring to 1"}));
  EXPECT_EQ(error_of({tensor + "kind=2d", tensor + "mesh=1,4,1", ring + "1"}, four), "no error");
}

// If degrees and ranks do not fit, the number of ranks that the degrees need is offered.
TEST(PlanLimits, OtherRanksAreOfferedWhereTheyWork) {
  const std::string ring = "parallelism.context_parallel_ring=", data = "parallelism.data_parallel_degree=";
  const std::string stages = "parallelism.pipeline_parallel_degree=";
  struct Misfit {
    Words words;
    int wanted;
    const char* says;
  };
  const Misfit misfits[] = {
      {{data + "3"}, 3, "must equal the 4 ranks of the run; set it to 4 or -1, or run.ranks to 3"},
      {{data + "2", ring + "3"}, 6, "their product 6 must equal the 4 ranks of the run"},
      {{data + "5"}, 5, "must be at most the 4 ranks of the run; set it to 4, or run.ranks to 5"},
      {{data + "8", ring + "2"}, 16, "set it to 2, or run.ranks to 16"}};
  for (const Misfit& misfit : misfits) {
    const std::string error = error_of(misfit.words, {.ranks = 4, .vocab_size = 257});
    EXPECT_TRUE(says(error, {misfit.says, fmt::format("run.ranks to {}", misfit.wanted)}));
    EXPECT_EQ(error_of(misfit.words, {.ranks = misfit.wanted, .vocab_size = 257}), "no error") << error;
  }
  EXPECT_TRUE(says(error_of({stages + "8"}, {.ranks = 4, .vocab_size = 257}), {"set it to 4, or run.ranks to 8"}));
  // No number of ranks is offered here, because the product exceeds the limit of ranks.
  const std::string error = error_of({data + "65536", ring + "65536"}, {.ranks = 4, .vocab_size = 257});
  EXPECT_TRUE(says(error, {"must be at most the 4 ranks"}));
  EXPECT_EQ(error.find("run.ranks"), std::string::npos) << error;
}

TEST(PlanLimits, AdviceAboutACutIsLegalItself) {
  const std::string key = "parallelism.context_parallel_";
  EXPECT_TRUE(says(error_of({key + "ring=65536"}, {.ranks = 65536, .vocab_size = 257}),
                   {"training.seq_len = 256 (default) must be at least 131072", "ring = 65536",
                    "parallelism.context_parallel_ring to 128"}));
  EXPECT_TRUE(says(error_of({key + "ring=-1", key + "window=3", "parallelism.data_parallel_degree=1"},
                            {.ranks = 4, .vocab_size = 257}),
                   {"window = 3", "ring = -1 (command line), which is 4", "; set it to 2"}));
  for (const char* idle : {"1", "4"}) {
    EXPECT_TRUE(says(error_of({key + "ring=4", key + "window=" + idle}, {.ranks = 4, .vocab_size = 257}),
                     {std::string("window = ") + idle, "must be 0, or a divisor from 2 to half", "set it to "}));
  }
  EXPECT_EQ(error_of({key + "ring=4", key + "window=2"}, {.ranks = 4, .vocab_size = 257}), "no error");
}

// A bucket is planned as one all-reduce, however small the shards of many ranks are.
TEST(PlanLimits, ManyRanksArePlanned) {
  for (const int ranks : {1000, 4096, 10000}) {
    const Words batch = {fmt::format("training.global_batch_size={}", ranks), "training.local_batch_size=1"};
    EXPECT_EQ(error_of(batch, {.ranks = ranks, .vocab_size = 257}), "no error") << ranks;
  }
}

// The traffic of rings of any length and window equals the sum over the blocks that travel. The test adds them one by
// one; the plan needs no such list.
TEST(PlanLimits, RingsPassOnWhatTravels) {
  for (const SequencePlacement placement : {SequencePlacement::contiguous, SequencePlacement::zigzag}) {
    for (const int ring : {2, 3, 4, 6, 8, 12}) {
      for (int window = 1; window <= ring; ++window) {
        if (ring % window != 0) continue;
        for (const int64_t length : {24, 25, 31, 37, 47}) {
          const auto block = [&](int member) { return num_ring_positions(placement, length, ring, member % ring); };
          const SequencePlan plan{.ring = ring, .window = window, .placement = placement};
          const SequenceAttention a{
              .sequences = 1, .seq_len = length, .heads = 1, .key_heads = 1, .head_dim = 1, .element_bytes = 4};
          for (int r = 0; r < ring; ++r) {
            const int windows = ring / window, w = r / window, i = r % window;
            const auto at = [&](int o, int s) {
              return block((w - o + windows) % windows * window + (i - s + window) % window);
            };
            int64_t blocks = 0, sums = 0, messages = 0;  // sent
            for (int o = 0; o < windows; ++o) {
              for (int s = 0; s < window - 1; ++s, ++messages) blocks += at(o, s), sums += at(o, s + 1);
              if (o < windows - 1) blocks += at(o, 0), sums += at(o + 1, 0), ++messages;
            }
            const SequenceTraffic traffic = sequence_traffic(plan, a, 0, r);
            ASSERT_EQ(traffic.forward[0].bytes.sent, 2 * blocks * 4) << ring << ", " << window << ", " << length;
            ASSERT_EQ(traffic.forward[0].calls, messages);
            ASSERT_EQ(traffic.backward[1].bytes.sent, 2 * sums * 4) << ring << ", " << window << ", " << length;
          }
        }
      }
    }
  }
}

TEST(PlanLimits, MicrobatchesAreThoseOfADataRank) {
  const Words words = {"training.global_batch_size=65537", "training.local_batch_size=1"};
  const RunFacts two{.ranks = 2, .vocab_size = 257};
  EXPECT_EQ(error_of(words, two), "no error");
  Words ring = words;
  ring.push_back("parallelism.context_parallel_ring=2");
  EXPECT_TRUE(says(error_of(ring, two),
                   {"global_batch_size = 65537", "65537 microbatches a rank, which must be at most 65536"}));
  // A run on one rank would be refused, so that it is not offered as an alternative.
  const Plan plan = advised_plan(parse_config("", "run.toml", words), two);
  const auto offered = [&](const char* change) {
    return std::ranges::count(alternatives_to(plan), change, &Alternative::change);
  };
  EXPECT_EQ(offered("run.ranks=1"), 0);
  EXPECT_EQ(offered("run.ranks=4"), 1);
}

const Words kLong = {"model.hidden_size=2048",
                     "model.num_attention_heads=32",
                     "model.num_key_value_heads=32",
                     "model.max_position_embeddings=134217728",
                     "training.seq_len=134217728",
                     "training.global_batch_size=16",
                     "training.local_batch_size=16",
                     "parallelism.context_parallel_ring=4"};

// The score rows that each of four ranks would keep have 2^61 elements per layer.
TEST(PlanLimits, RowsOfScoresBeyondCountingAreRefused) {
  const RunFacts four{.ranks = 4, .vocab_size = 257};
  const std::string kept = "parallelism.context_parallel_attention=ring_self_attention";
  EXPECT_TRUE(says(error_of(with(kLong, {kept}), four),
                   {"training.local_batch_size = 16", "training.seq_len = 134217728", "model.num_attention_heads = 32",
                    "context_parallel_attention = \"ring_self_attention\" (command line)",
                    " attention scores a microbatch, which must be below"}));
  EXPECT_EQ(error_of(kLong, four), "no error");
  const Words shorter = {"training.seq_len=65536", "training.local_batch_size=4"};
  EXPECT_EQ(error_of(with(with(kLong, shorter), {kept}), four), "no error");
}

TEST(PlanLimits, ProjectionsBeyondCountingAreRefusedByName) {
  EXPECT_TRUE(says(error_of({"model.objective=masked", "model.linformer_length=1048576", "training.seq_len=134217728",
                             "model.max_position_embeddings=134217728", "model.num_hidden_layers=64"}),
                   {"model.linformer_length = 1048576", "training.seq_len = 134217728",
                    " parameters, which must be below 1.8e+16"}));
}

TEST(PlanLimits, StepsThatSendMoreThanCanBeCountedAreRefused) {
  EXPECT_TRUE(says(error_of({"training.global_batch_size=16777216", "training.local_batch_size=64", "run.ranks=2",
                             "model.num_hidden_layers=64", "training.seq_len=134217728", "training.steps=1",
                             "model.max_position_embeddings=134217728", "parallelism.context_parallel_ulysses=2"}),
                   {"training.global_batch_size = 16777216", "model.num_hidden_layers = 64",
                    " elements sent a step, which must be below"}));
}

TEST(PlanLimits, LargeModelsThatCouldExistArePlanned) {
  EXPECT_EQ(error_of({"model.hidden_size=16384", "model.intermediate_size=53248", "model.num_hidden_layers=126",
                      "model.num_attention_heads=128", "model.num_key_value_heads=8", "model.vocab_size=128256",
                      "training.seq_len=131072", "model.max_position_embeddings=131072"}),
            "no error");
  EXPECT_EQ(error_of({"parallelism.bucket_mib=1e300"}), "no error");
}

// Planning 512 ranks takes less than 2 s, because equal ranks are counted once. The test measures processor time, which
// does not depend on other programs.
TEST(PlanLimits, ManyRanksArePlannedInSeconds) {
  constexpr double kMost_s = 2;
  for (const char* kind : {"1d", "auto"}) {
    const Words words = {"model.num_attention_heads=16",
                         "model.num_key_value_heads=16",
                         "training.global_batch_size=512",
                         "run.ranks=512",
                         std::string("parallelism.tensor_parallel_kind=") + kind,
                         "parallelism.tensor_parallel_degree=16"};
    const std::clock_t start = std::clock();
    EXPECT_EQ(error_of(words, {.ranks = 512, .vocab_size = 257}), "no error");
    EXPECT_LT(static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC, kMost_s) << kind;
  }
}

}  // namespace
}  // namespace orthant::plan_limits_test
