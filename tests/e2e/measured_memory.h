// Trains a small run in processes, and reads the planned and the measured peak memory of its ranks.
#pragma once

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/json.h"
#include "report/metrics.h"
#include "tests/support/program.h"
#include "tests/support/tiny_run.h"

namespace orthant::memory_test {

struct Measured {
  double planned = 0, peak = 0;  // bytes of the largest rank
  double state = 0;              // planned bytes of parameters, gradients and optimizer
  double parameters = 0;         // planned bytes, summed over all ranks
  bool steady = true;            // no step has a higher peak than the first
  double activations() const { return peak - state; }
};

inline std::vector<std::string> sizes(const std::vector<std::string>& more) {
  std::vector<std::string> keys = {"--run.ranks=2",
                                   "--model.hidden_size=192",
                                   "--model.intermediate_size=512",
                                   "--model.num_hidden_layers=4",
                                   "--model.num_attention_heads=6",
                                   "--model.num_key_value_heads=3",
                                   "--model.vocab_size=1024",
                                   "--model.max_position_embeddings=128",
                                   "--training.seq_len=128",
                                   "--training.global_batch_size=8",
                                   "--training.local_batch_size=4",
                                   "--training.steps=3",
                                   "--training.dtype=float32"};
  keys.insert(keys.end(), more.begin(), more.end());
  return keys;
}

inline Config config_of(const TinyRun& run, const std::vector<std::string>& more) {
  std::vector<std::string> keys = sizes(more);
  for (std::string& key : keys) key = key.substr(2);
  return load_config(run.run_file_path(), keys);
}

// Planned bytes of the largest rank, without a run.
inline double planned(const TinyRun& run, const std::vector<std::string>& more) {
  const Config config = config_of(run, more);
  const RunFacts facts{.ranks = static_cast<int>(config.run.ranks), .vocab_size = config.model.vocab_size};
  return static_cast<double>(make_plan(config, facts).largest_memory_bytes());
}

inline Measured measure(const TinyRun& run, const std::vector<std::string>& more) {
  const std::string dump = run.folder() + "/memory";
  std::filesystem::remove_all(dump);
  std::vector<std::string> command = {ORTHANT_BINARY_DIR "/orthant", "train", run.run_file_path(),
                                      "--job.dump_folder=" + dump};
  for (const std::string& key : sizes(more)) command.push_back(key);
  Program program(command, {});
  EXPECT_EQ(program.exit_code(), 0) << program.output();
  const auto plan = parse_json(slurp(dump + "/plan.json"), "plan.json");
  Measured m;
  for (const auto& ranks : plan["classes"]) {
    const auto& bytes = ranks["memory_bytes"];
    m.planned = std::max(m.planned, bytes["total"].get<double>());
    m.parameters += ranks["count"].get<double>() * bytes["parameters"].get<double>();
    m.state = bytes["parameters"].get<double>() + bytes["gradients"].get<double>() + bytes["optimizer"].get<double>();
  }
  for (const auto& step : read_metrics(dump + "/metrics.jsonl").steps) {
    m.steady = m.steady && (m.peak == 0 || static_cast<double>(step.peak_memory_bytes) <= 1.001 * m.peak);
    m.peak = std::max(m.peak, static_cast<double>(step.peak_memory_bytes));
  }
  return m;
}

}  // namespace orthant::memory_test
