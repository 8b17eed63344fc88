// Plans of the steps that benchmarks/gpu/train.py (Orthant) and steps.py (PyTorch) measured on one GPU: layers cut to
// fit, 1,024 to 212,992 tokens, with and without recomputation. Control: a profile with a wrong rate.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "plan/plan.h"
#include "plan/step_time.h"

namespace orthant::gpu_steps_test {
namespace {

using Step = nlohmann::json;

std::vector<Step> measured_steps(const std::string& file_name) {
  std::ifstream file(std::string(ORTHANT_SOURCE_DIR) + "/benchmarks/gpu/" + file_name + ".jsonl");
  std::vector<Step> steps;
  for (std::string line; std::getline(file, line);) steps.push_back(Step::parse(line));
  return steps;
}

Plan plan_of(const Hardware& hardware, const Step& step) {
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
                            .hardware = std::make_shared<const Hardware>(hardware)});
}

double planned_seconds(const Hardware& hardware, const Step& step) {
  return plan_of(hardware, step).step_time->seconds;
}

// The least and the largest planned / measured - 1 of the steps that a program made on a device.
std::pair<double, double> errors(const Hardware& hardware, const std::string& file) {
  std::pair<double, double> range = {1, -1};
  for (const Step& step : measured_steps(file)) {
    const int tokens = step["sequences"].get<int>() * step["microbatches"].get<int>() * step["seq_len"].get<int>();
    // PyTorch then waits for its launches. A plan has no launches.
    if (file.ends_with("steps") && step["layers"] == 16 && tokens <= 4096) continue;
    const double error = planned_seconds(hardware, step) / step["step_seconds"].get<double>() - 1;
    range = {std::min(range.first, error), std::max(range.second, error)};
  }
  return range;
}

TEST(GpuSteps, OfOrthantAgreeWithTheirPlans) {
  for (const std::string device : {"h100", "h200"}) {
    Hardware hardware = load_hardware(device);
    ASSERT_EQ(measured_steps(device + "-train").size(), device == "h100" ? 19 : 23);
    const auto [least, most] = errors(hardware, device + "-train");
    EXPECT_GT(least, -0.09) << device;
    EXPECT_LT(most, 0.08) << device;
    hardware.attention.backward.share /= 2;
    EXPECT_GT(errors(hardware, device + "-train").second, 0.20) << device;
  }
}

TEST(GpuSteps, OfPyTorchAreLongerThanThosePlannedForOrthant) {
  for (const std::string device : {"h100", "h200"}) {
    const auto [least, most] = errors(load_hardware(device), device + "-steps");
    EXPECT_GT(least, -0.15) << device;
    EXPECT_LT(most, -0.02) << device;
  }
}

TEST(GpuSteps, OfOrthantTakeThePlannedMemory) {
  for (const std::string device : {"h100", "h200"}) {
    for (const Step& step : measured_steps(device + "-train")) {
      const auto planned = static_cast<double>(plan_of(load_hardware(device), step).largest_memory_bytes());
      EXPECT_NEAR(planned / step["peak_bytes"].get<double>(), 1, 0.003) << step;
    }
  }
}

}  // namespace
}  // namespace orthant::gpu_steps_test
