#include "app/calibrate_step.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>

#include "app/run_setup.h"
#include "app/scratch_folder.h"
#include "base/errors.h"
#include "base/text.h"
#include "calibrate/measure_step.h"
#include "data/program.h"
#include "hardware/fit.h"
#include "launch/process.h"
#include "report/metrics.h"

namespace orthant {
namespace {

using Words = std::vector<std::string>;

Words model_of(int64_t width, int64_t tokens, const std::string& dtype) {
  return {fmt::format("model.hidden_size={}", width),
          fmt::format("model.intermediate_size={}", 11 * width / 4),
          "model.num_hidden_layers=4",
          "model.num_attention_heads=8",
          "model.num_key_value_heads=8",
          "model.vocab_size=1024",
          fmt::format("training.seq_len={}", tokens),
          "training.global_batch_size=4",
          "training.local_batch_size=1",
          fmt::format("training.dtype={}", dtype)};
}

Plan plan_on(const Hardware& hardware, const Words& settings) {
  const Config config = parse_config("", "calibrate", settings);
  RunFacts facts = facts_of_model(config);
  facts.hardware = std::make_shared<const Hardware>(hardware);
  return make_plan(config, facts);
}

// A step that was measured.
struct Step {
  Words settings;
  double seconds;
};

// Finds the numbers with which the plans of the steps are closest to their measured times, beginning with `x`. Passes
// them to `set`, which changes the hardware. Returns the mean error after that.
double fit_to_steps(const Hardware& hardware, const std::vector<Step>& steps, const std::vector<double>& x,
                    const std::function<void(const std::vector<double>&)>& set) {
  const auto loss = [&](const std::vector<double>& now) {
    set(now);
    double sum = 0;
    for (const Step& step : steps) {
      sum += std::abs(std::log(plan_on(hardware, step.settings).step_time->seconds / step.seconds));
    }
    return sum / static_cast<double>(steps.size());
  };
  return loss(minimize(x, loss));
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return (values[values.size() / 2] + values[(values.size() - 1) / 2]) / 2;
}

// Trains and returns the seconds of the median step, without the first two.
double train_step(const std::filesystem::path& folder, const Words& settings) {
  const std::filesystem::path run = folder / "run", empty = folder / "empty.toml", text = folder / "text.txt";
  std::filesystem::remove_all(run);
  std::ofstream(empty) << "";
  std::ofstream words(text);
  for (int i = 0; i < 4000; ++i) words << "paragraph " << i * i % 997 << " of a text with " << i << " paragraphs\n\n";
  words.close();
  Words argv = {std::filesystem::read_symlink("/proc/self/exe"),
                "train",
                empty,
                fmt::format("job.dump_folder={}", run.string()),
                fmt::format("data.path={}", text.string()),
                "data.validation=0",
                "validation.freq=0",
                "checkpoint.interval=0",
                "metrics.enable_tensorboard=false",
                "training.steps=10"};
  argv.insert(argv.end(), settings.begin(), settings.end());
  const ProgramResult result = run_program(argv, "", "", "");
  if (result.exit_code != 0) throw Error(fmt::format("a run for the calibration failed: {}", result.errors));
  std::vector<double> seconds;
  for (const StepMetrics& step : read_metrics(run / "metrics.jsonl").steps) {
    if (step.step > 2) seconds.push_back(step.step_seconds);
  }
  return median(seconds);
}

}  // namespace

void fit_step(Hardware& hardware, double seconds) {
  const std::vector<int64_t> widths = {128, 256, 512}, lengths = {64, 256};
  const Words dtypes = {"float32", "bfloat16"};
  const double each = seconds / static_cast<double>(widths.size() * lengths.size() * dtypes.size());
  Hardware core = hardware;  // one rank on a core of its own
  core.device.shared_cores = 0;
  std::vector<Step> steps;
  for (const std::string& dtype : dtypes) {
    for (const int64_t width : widths) {
      for (const int64_t tokens : lengths) {
        Words settings = model_of(width, tokens, dtype);
        settings.push_back("run.ranks=1");
        const StepWork work = {
            .model = plan_on(core, settings).architecture, .microbatches = 4, .tokens = tokens, .dtype = dtype};
        steps.push_back({settings, measure_step(work, hardware.device.shared_cores, each)});
      }
    }
  }
  const double error = fit_to_steps(core, steps, {0.9, 0.9}, [&](const std::vector<double>& x) {
    core.step.compute_share = std::min(1.0, x[0]);
    core.memory.share = std::min(1.0, x[1]);
  });
  hardware.step = {.origin = hardware.products.origin, .compute_share = core.step.compute_share};
  hardware.memory.share = core.memory.share;
  fmt::print(stderr, "        steps of one device have a mean error of {:.0f} %\n", 100 * error);
}

void fit_calls(Hardware& hardware) {
  const ScratchFolder folder(std::filesystem::temp_directory_path() /
                             fmt::format("orthant-calibrate-{}.tmp", random_nonce()));
  std::vector<Step> steps;
  const Words layouts = {"parallelism.tensor_parallel_degree=2", "parallelism.context_parallel_ulysses=2"};
  for (const std::string& layout : layouts) {
    for (const int64_t tokens : {64, 256}) {
      Words settings = model_of(256, tokens, "float32");
      settings.insert(settings.end(), {"run.ranks=2", "run.threads_per_rank=1", layout});
      steps.push_back({settings, train_step(folder.path(), settings)});
    }
  }
  Hardware two = for_ranks_of_host(hardware, 2);
  const double error = fit_to_steps(two, steps, {5e-5, 4}, [&](const std::vector<double>& x) {
    two.step.call_seconds = std::min(1.0, x[0]);
    two.step.message_traffic = std::min(100.0, x[1]);
  });
  hardware.step.call_seconds = two.step.call_seconds;
  hardware.step.message_traffic = two.step.message_traffic;
  fmt::print(stderr, "        steps of two ranks have a mean error of {:.0f} %\n", 100 * error);
}

}  // namespace orthant
