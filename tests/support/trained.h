// Trains a tiny run with the real program. Gives its output, its losses and every stored byte.
#pragma once

#include "checkpoint/checkpoint.h"
#include "report/metrics.h"
#include "tests/support/program.h"
#include "tests/support/tiny_run.h"

#include <map>

namespace orthant {

struct Trained {
  std::string folder, output;
};

/// Runs `orthant train` on the run file, with the dump folder `name` inside the run's folder.
inline Trained train(const TinyRun& run, const std::string& name, const std::vector<std::string>& more) {
  const std::string folder = run.folder() + "/" + name;
  std::vector<std::string> command = {ORTHANT_BINARY_DIR "/orthant", "train", run.run_file_path(),
                                      "--job.dump_folder=" + folder};
  command.insert(command.end(), more.begin(), more.end());
  Program program(command, {{"OMP_NUM_THREADS", "1"}});
  EXPECT_EQ(program.exit_code(), 0) << program.output();
  return {folder, program.output()};
}

inline std::vector<double> losses_of(const Trained& trained) {
  std::vector<double> losses;
  for (const auto& step : read_metrics(trained.folder + "/metrics.jsonl").steps) losses.push_back(step.loss);
  return losses;
}

/// Returns the bytes of all tensors in a step's checkpoint, by name: weights, master weights and moments.
inline std::map<std::string, std::string> bytes_of(const Trained& trained, int64_t step) {
  const auto checkpoint = open_checkpoint(fmt::format("{}/checkpoints/step-{:06}", trained.folder, step));
  std::map<std::string, std::string> all;
  for (const TensorSet* set : {&checkpoint.weights, &checkpoint.optimizer}) {
    for (const auto& name : set->names()) {
      const auto bytes = set->bytes(name);
      all[name] = {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
    }
  }
  return all;
}

}  // namespace orthant
