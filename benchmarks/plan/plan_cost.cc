// Measures what one plan of many ranks costs: the seconds and the peak memory of make_plan(), and the classes of ranks
// that it finds. The model is Llama 3 8B with sequences of 8,192 tokens.
//
//   build/benchmarks/plan_cost [ranks]
//
// Each layout is planned in a process of its own, so that its peak memory is its own. Times are CPU times, the least of
// three.
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <string>
#include <vector>

#include "hardware/hardware.h"
#include "plan/plan.h"

namespace orthant {
namespace {

using Words = std::vector<std::string>;

struct Case {
  std::string name;
  Words keys;
};

Config config_of(int ranks, const Words& keys) {
  Words words = {"model.hidden_size=4096",
                 "model.intermediate_size=14336",
                 "model.num_hidden_layers=32",
                 "model.num_attention_heads=32",
                 "model.num_key_value_heads=8",
                 "model.vocab_size=128256",
                 "model.max_position_embeddings=8192",
                 "training.seq_len=8192",
                 "training.dtype=bfloat16",
                 "training.local_batch_size=1",
                 fmt::format("training.global_batch_size={}", ranks),
                 fmt::format("run.ranks={}", ranks)};
  words.insert(words.end(), keys.begin(), keys.end());
  return parse_config("", "run.toml", words);
}

std::vector<Case> cases() {
  const std::string p = "parallelism.", zero = p + "zero_stage=";
  const std::string tensor = p + "tensor_parallel_degree=8", pipeline = p + "pipeline_parallel_degree=8";
  const std::string ulysses = p + "context_parallel_ulysses=8", ring = p + "context_parallel_ring=8";
  const std::string microbatch = p + "zero_reshard=microbatch";
  return {{"data", {}},
          {"data, ZeRO 1", {zero + "1"}},
          {"data, ZeRO 3", {zero + "3", microbatch}},
          {"data, ZeRO 3 in groups of 64", {zero + "3", microbatch, p + "data_parallel_shard_degree=64"}},
          {"tensor 8, ZeRO 1", {tensor, zero + "1"}},
          {"tensor 8, pipeline 8, ZeRO 1", {tensor, pipeline, zero + "1"}},
          {"tensor 8, pipeline 8, ZeRO 3", {tensor, pipeline, zero + "3", microbatch}},
          {"tensor 8, pipeline 8, vocabulary algorithm_2",
           {tensor, pipeline, zero + "1", p + "vocabulary_parallel=algorithm_2"}},
          {"ulysses 8, ring 8", {ulysses, ring}},
          {"ulysses 8, ring 8, ZeRO 3", {ulysses, ring, zero + "3", microbatch}},
          {"tensor 8, Muon, ZeRO 1", {tensor, zero + "1", "optimizer.name=muon"}}};
}

void measure(int ranks, const Case& each) {
  const Config config = config_of(ranks, each.keys);
  const RunFacts facts{.ranks = ranks,
                       .vocab_size = config.model.vocab_size,
                       .hardware = std::make_shared<const Hardware>(load_hardware("h100-8x"))};
  double least = 1e30;
  int classes = 0;
  for (int run = 0; run < 3; ++run) {
    const std::clock_t begin = std::clock();
    classes = make_plan(config, facts).classes.count();
    least = std::min(least, static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC);
  }
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  fmt::print("{:<46}{:>10.3f}{:>10.1f}{:>10}\n", each.name, least, static_cast<double>(usage.ru_maxrss) / 1e3, classes);
}

}  // namespace
}  // namespace orthant

int main(int count, char** words) {
  using namespace orthant;
  const int ranks = count > 1 ? std::atoi(words[1]) : 4096;
  fmt::print("{} ranks\n{:<46}{:>10}{:>10}{:>10}\n", ranks, "layout", "seconds", "MB", "classes");
  std::fflush(stdout);
  for (const Case& each : cases()) {
    const pid_t child = fork();
    if (child == 0) {
      measure(ranks, each);
      std::fflush(stdout);
      std::_Exit(0);
    }
    int status = 0;
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0) return 1;
  }
}
