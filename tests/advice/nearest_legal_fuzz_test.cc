// Every refusal of a random run file offers settings, and each of them makes the run legal.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <ctime>
#include <map>
#include <random>

#include "advice/advised_plan.h"
#include "base/errors.h"
#include "tests/support/ways_out.h"

namespace orthant::nearest_legal_fuzz_test {
namespace {

using Words = std::vector<std::string>;

struct Choice {
  const char* key;
  Words values;
};

const Words kDegrees = {"-1", "1", "2", "3", "4", "5", "8", "16", "9223372036854775807"};

std::vector<Choice> make_choices() {
  std::vector<Choice> choices = {
      {"run.ranks", {"1", "2", "3", "4", "6", "8", "12", "16", "64"}},
      {"run.device", {"cuda"}},
      {"run.transport", {"ucx", "gloo", "nccl"}},
      {"model.architecture", {"gpt2"}},
      {"model.hidden_size", {"1", "24", "30", "32", "48", "60", "96", "1048576"}},
      {"model.intermediate_size", {"1", "40", "4194304"}},
      {"model.num_hidden_layers", {"1", "2", "3", "7", "12", "10000"}},
      {"model.num_attention_heads", {"1", "3", "4", "6", "8", "12", "65536"}},
      {"model.num_key_value_heads", {"1", "2", "3", "4", "8"}},
      {"model.head_dim", {"1", "3", "4", "8", "65536"}},
      {"model.vocab_size", {"300"}},  // a smaller one is refused when the tokenizer is known
      {"model.max_position_embeddings", {"1", "8", "64", "100", "134217728"}},
      {"model.rope_scaling_type", {"llama3", "linear"}},
      {"model.rope_scaling_low_freq_factor", {"4", "9.5"}},
      {"model.qk_norm", {"true"}},
      {"model.norm", {"layer_norm"}},
      {"model.mlp", {"gelu", "gelu_tanh"}},
      {"model.attention_bias", {"true"}},
      {"model.mlp_bias", {"true"}},
      {"model.objective", {"masked"}},
      {"model.masked_share", {"1e-9", "0.2"}},
      {"model.sliding_window", {"1", "8"}},
      {"model.linformer_length", {"5", "64", "1048576"}},
      {"data.mask_documents", {"true"}},
      {"data.long_documents", {"cut"}},
      {"data.validation", {"0"}},
      {"training.steps", {"1", "10", "9000000000000000000"}},
      {"training.seq_len", {"1", "7", "16", "24", "37", "64", "1000", "134217728"}},
      {"training.global_batch_size", {"1", "2", "5", "8", "12", "33", "16777216"}},
      {"training.local_batch_size", {"1", "2", "3", "8", "64"}},
      {"training.seed_weights", {"false"}},
      {"lr_scheduler.warmup_steps", {"0", "50", "400"}},
      {"optimizer.name", {"sgd"}},
      {"optimizer.momentum", {"0.5"}},
      {"optimizer.beta1", {"0.5"}},
      {"validation.freq", {"0", "5"}},
      {"parallelism.zero_stage", {"1", "2", "3"}},
      {"parallelism.zero_reshard", {"microbatch"}},
      {"parallelism.expert_parallel_degree", {"2"}},
      {"parallelism.tensor_parallel_kind", {"1d", "2d", "2.5d", "auto"}},
      {"parallelism.tensor_parallel_mesh",
       {"[1,2,1]", "[2,1,1]", "[2,2,1]", "[2,3,1]", "[1,1,2]", "[1,1,4]", "[3,4,1]", "[64,1,1]",
        "[4611686018427387904,4,1]"}},
      {"parallelism.tensor_parallel_sequence", {"false"}},
      {"parallelism.tensor_parallel_product", {"summa"}},
      {"parallelism.context_parallel_attention", {"ring_self_attention", "linformer"}},
      {"parallelism.context_parallel_placement", {"contiguous", "stripe"}},
      {"parallelism.context_parallel_window", {"1", "2", "3", "4"}},
      {"parallelism.context_parallel_reduction", {"all_reduce"}},
      {"parallelism.pipeline_parallel_schedule", {"gpipe", "interleaved_1f1b", "zb_h1", "zb_v", "dual_pipe_v"}},
      {"parallelism.pipeline_parallel_stages_per_rank", {"1", "2", "3", "9223372036854775807"}},
      {"parallelism.pipeline_parallel_layers", {"[-1]", "[3,3]", "[2,2,1,1]", "[9]", "[3,-1]"}},
      {"parallelism.pipeline_parallel_post_validation", {"true"}},
      {"parallelism.vocabulary_parallel", {"naive", "algorithm_1", "algorithm_2", "redistribution", "interlaced"}},
  };
  for (const char* key : {"data_parallel_degree", "tensor_parallel_degree", "context_parallel_ulysses",
                          "context_parallel_ring", "pipeline_parallel_degree"}) {
    for (int often = 0; often < 2; ++often) choices.push_back({nullptr, {}}), choices.back().values = {key};
  }
  return choices;
}

Words random_settings(std::mt19937_64& random) {
  static const std::vector<Choice> choices = make_choices();
  const auto pick = [&](const auto& from) { return from[random() % from.size()]; };
  Words words;
  for (uint64_t count = 1 + random() % 6; count > 0; --count) {
    const Choice choice = pick(choices);
    words.push_back(choice.key != nullptr ? fmt::format("{}={}", choice.key, pick(choice.values))
                                          : fmt::format("parallelism.{}={}", choice.values[0], pick(kDegrees)));
  }
  return words;
}

// The message with which the run is refused; empty if it is legal. An offered setting must pass make_plan().
std::string refusal_of(const Words& words) {
  try {
    const Config config = parse_config("", "run.toml", words);
    check_with_advice(config);
    advised_plan(config, {.ranks = static_cast<int>(config.run.ranks), .vocab_size = 257});
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

bool is_readable(const Words& words) {
  try {
    parse_config("", "run.toml", words);
    return true;
  } catch (const ConfigError&) {
    return false;
  }
}

// Counts the refusals of `count` random run files by law, and expects ways out that work.
std::map<std::string, int> refusals(uint64_t seed, int count) {
  std::mt19937_64 random(seed);
  std::map<std::string, int> laws;
  for (int i = 0; i < count; ++i) {
    const Words words = random_settings(random);
    if (!is_readable(words)) continue;
    const std::string refusal = refusal_of(words);
    if (refusal.empty()) continue;
    ++laws[law_of(refusal)];
    const std::vector<Settings> ways = ways_out(refusal);
    EXPECT_FALSE(ways.empty()) << refusal << "\n" << testing::PrintToString(words);
    EXPECT_LE(ways.size(), 3u) << refusal;
    for (const Settings& way : ways) {
      Words changed = words;
      changed.insert(changed.end(), way.begin(), way.end());
      EXPECT_EQ(refusal_of(changed), "") << refusal << "\n" << testing::PrintToString(changed);
    }
  }
  return laws;
}

TEST(NearestLegal, WaysOutOfRandomRefusalsWork) {
  const auto laws = refusals(1, 800);
  EXPECT_GT(laws.size(), 50u);
}

TEST(LongNearestLegal, WaysOutOfRandomRefusalsWork) {
  for (uint64_t seed = 2; seed < 12; ++seed) refusals(seed, 3000);
}

// The search takes less than half a second of processor time for 4096 ranks, whose degrees have many factorisations.
TEST(NearestLegal, IsFastForThousandsOfRanks) {
  const std::string tensor = "parallelism.tensor_parallel_", ring = "parallelism.context_parallel_ring=";
  const Words large = {"model.num_attention_heads=64", "model.hidden_size=8192", "training.global_batch_size=4096",
                       "model.num_key_value_heads=8"};
  for (const char* ranks : {"run.ranks=4096", "run.ranks=5040"}) {
    for (const Words& keys :
         {Words{tensor + "kind=2d", tensor + "mesh=[3,64,1]"}, Words{tensor + "degree=17"},
          Words{tensor + "kind=2.5d", tensor + "mesh=[16,16,16]"}, Words{ring + "4095", tensor + "degree=2"},
          Words{tensor + "kind=auto", tensor + "degree=48"}, Words{"parallelism.pipeline_parallel_degree=128"}}) {
      Words words = large;
      words.emplace_back(ranks);
      words.insert(words.end(), keys.begin(), keys.end());
      const std::clock_t begin = std::clock();
      const std::string refusal = refusal_of(words);
      const double seconds = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
      if (refusal.empty()) continue;
      EXPECT_FALSE(ways_out(refusal).empty()) << refusal;
      EXPECT_LT(seconds, 0.5) << refusal;
    }
  }
}

}  // namespace
}  // namespace orthant::nearest_legal_fuzz_test
