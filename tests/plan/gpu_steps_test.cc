// Planned times of the steps that benchmarks/gpu/steps.py measured on one H100 and on one H200: layers cut to fit,
// 1,024 to 212,992 tokens, with and without recomputation. Control: a profile with a wrong rate.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>

#include "plan/plan.h"
#include "plan/step_time.h"

namespace orthant::gpu_steps_test {
namespace {

using Step = nlohmann::json;

std::vector<Step> measured_steps(const std::string& device) {
  std::ifstream file(std::string(ORTHANT_SOURCE_DIR) + "/benchmarks/gpu/" + device + "-steps.jsonl");
  std::vector<Step> steps;
  for (std::string line; std::getline(file, line);) steps.push_back(Step::parse(line));
  return steps;
}

double planned_seconds(const Hardware& hardware, const Step& step) {
  const auto key = [&](const char* name, const char* field) { return fmt::format("{}={}", name, step[field].dump()); };
  const std::vector<std::string> words = {
      "run.ranks=1",
      "run.device=cuda",
      "training.dtype=bfloat16",
      key("model.hidden_size", "hidden"),
      key("model.intermediate_size", "mlp"),
      key("model.num_attention_heads", "heads"),
      key("model.num_key_value_heads", "kv_heads"),
      key("model.head_dim", "head"),
      key("model.vocab_size", "vocabulary"),
      key("model.num_hidden_layers", "layers"),
      key("model.max_position_embeddings", "seq_len"),
      key("training.seq_len", "seq_len"),
      key("training.local_batch_size", "sequences"),
      fmt::format("training.global_batch_size={}", step["sequences"].get<int>() * step["microbatches"].get<int>()),
      fmt::format("activation_checkpoint.mode={}", step["recompute"].get<bool>() ? "full" : "none")};
  const Config config = parse_config("", "run.toml", words);
  return make_plan(config, {.ranks = 1,
                            .vocab_size = config.model.vocab_size,
                            .hardware = std::make_shared<const Hardware>(hardware)})
      .step_time->seconds;
}

// Returns the largest |planned / measured - 1|. With at most 4,096 tokens a step, the measured program of 16 layers
// waited for its launches: a plan has no launches.
double largest_error(const Hardware& hardware, const std::string& device) {
  double largest = 0;
  int count = 0;
  for (const Step& step : measured_steps(device)) {
    const int tokens = step["sequences"].get<int>() * step["microbatches"].get<int>() * step["seq_len"].get<int>();
    if (step["layers"] == 16 && tokens <= 4096) continue;
    ++count;
    largest = std::max(largest, std::abs(planned_seconds(hardware, step) / step["step_seconds"].get<double>() - 1));
  }
  EXPECT_EQ(count, 18) << device;
  return largest;
}

TEST(GpuSteps, AgreeWithThePlans) {
  for (const char* device : {"h100", "h200"}) {
    Hardware hardware = load_hardware(device);
    EXPECT_LT(largest_error(hardware, device), 0.08) << device;
    hardware.attention.backward.share /= 2;
    EXPECT_GT(largest_error(hardware, device), 0.20) << device;
  }
}

}  // namespace
}  // namespace orthant::gpu_steps_test
