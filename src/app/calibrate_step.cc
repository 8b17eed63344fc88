#include "app/calibrate_step.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <memory>

#include "app/scratch_folder.h"
#include "base/errors.h"
#include "base/text.h"
#include "data/program.h"
#include "hardware/fit.h"
#include "launch/process.h"
#include "library/run.h"
#include "report/metrics.h"

namespace orthant {
namespace {

using Words = std::vector<std::string>;

// A step that was measured, of a run with these settings.
struct Step {
  Words settings;
  int64_t ranks;
  double seconds;
};

Words model_of(int64_t width, int64_t tokens, const std::string& dtype) {
  return {fmt::format("model.hidden_size={}", width),
          fmt::format("model.intermediate_size={}", 11 * width / 4),
          "model.num_hidden_layers=8",
          "model.num_attention_heads=8",
          "model.num_key_value_heads=8",
          "model.vocab_size=1024",
          fmt::format("training.seq_len={}", tokens),
          "training.local_batch_size=1",
          fmt::format("training.dtype={}", dtype)};
}

double planned_seconds(const Hardware& hardware, const Step& step) {
  const Config config = parse_config("", "calibrate", step.settings);
  RunFacts facts = facts_of_model(config);
  facts.hardware = std::make_shared<const Hardware>(for_ranks_of_host(hardware, step.ranks));
  return plan_step_time(config, facts).seconds;
}

// A number to be fitted: where the search starts, and its largest legal value.
struct Unknown {
  double start, most;
};

// Finds the numbers with the least squares of logarithms of planned over measured times, and passes them to `set`,
// which changes the hardware.
void fit_to_steps(const Hardware& hardware, const std::vector<Step>& steps, const std::vector<Unknown>& unknowns,
                  const std::function<void(const std::vector<double>&)>& set) {
  std::vector<double> x;
  for (const Unknown& unknown : unknowns) x.push_back(unknown.start);
  set(minimize(x, [&](const std::vector<double>& now) {
    for (size_t i = 0; i < now.size(); ++i) {
      if (now[i] > unknowns[i].most) return std::numeric_limits<double>::infinity();
    }
    set(now);
    double sum = 0;
    for (const Step& step : steps) sum += std::pow(std::log(planned_seconds(hardware, step) / step.seconds), 2);
    return sum;
  }));
}

// Trains for this number of steps and returns the seconds of one: the lower quartile, without the first two. Other
// programs only make steps longer, so a median would let them change the shares.
double train_step(const std::filesystem::path& folder, const Words& settings, int64_t steps) {
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
                "metrics.sample_tokens=0",
                fmt::format("training.steps={}", steps)};
  argv.insert(argv.end(), settings.begin(), settings.end());
  const ProgramResult result = run_program(argv, "", "", "");
  if (result.exit_code != 0) throw Error(fmt::format("a run for the calibration failed: {}", result.errors));
  std::vector<double> seconds;
  for (const StepMetrics& step : read_metrics(run / "metrics.jsonl").steps) {
    if (step.step > 2) seconds.push_back(step.step_seconds);
  }
  if (seconds.empty()) throw Error("a run for the calibration has recorded no steps");
  std::ranges::sort(seconds);
  const double at = 0.25 * static_cast<double>(seconds.size() - 1);
  const auto below = static_cast<size_t>(at);
  return std::lerp(seconds[below], seconds[std::min(below + 1, seconds.size() - 1)], at - static_cast<double>(below));
}

// Trains on this number of ranks with one thread each, and returns the measured step. It has four microbatches, so that
// computation takes more of it than reductions of gradients. A layout that is not empty divides each data rank's work
// between two ranks. Steps that are planned to be long are fewer.
Step measured_step(const Hardware& hardware, const std::filesystem::path& folder, Words settings, int64_t ranks,
                   const std::string& layout = "") {
  constexpr double kSeconds = 3, kFewest = 5, kMost = 10;
  const int64_t data_ranks = layout.empty() ? ranks : ranks / 2;
  settings.insert(settings.end(), {fmt::format("run.ranks={}", ranks), "run.threads_per_rank=1",
                                   fmt::format("training.global_batch_size={}", 4 * data_ranks)});
  if (!layout.empty()) settings.push_back(layout);
  Step step{.settings = settings, .ranks = ranks, .seconds = 0};
  const double steps = std::clamp(kSeconds / planned_seconds(hardware, step), kFewest, kMost);
  step.seconds = train_step(folder, settings, std::lround(steps));
  return step;
}

double mean_error(const Hardware& hardware, const std::vector<Step>& steps) {
  double sum = 0;
  for (const Step& step : steps) sum += std::abs(planned_seconds(hardware, step) / step.seconds - 1);
  return sum / static_cast<double>(steps.size());
}

}  // namespace

void fit_step(Hardware& hardware) {
  const ScratchFolder folder(std::filesystem::temp_directory_path() / ".orthant-calibrate");
  const int64_t cores = hardware.device.shared_cores, ranks = std::max<int64_t>(2, cores - cores % 2);
  std::vector<Step> all;
  const auto measure = [&](std::vector<Step>& steps, int64_t on_ranks, Words settings, const std::string& layout = "") {
    steps.push_back(measured_step(hardware, folder.path(), std::move(settings), on_ranks, layout));
    all.push_back(steps.back());
  };
  std::vector<Step> float32, bfloat16, exchanging, sharing;
  for (const auto& [width, tokens] : {std::pair(128, 256), std::pair(256, 128), std::pair(512, 64)}) {
    measure(float32, ranks, model_of(width, tokens, "float32"));
    measure(bfloat16, ranks, model_of(width, tokens, "bfloat16"));
  }
  for (const char* layout : {"parallelism.tensor_parallel_degree=2", "parallelism.context_parallel_ulysses=2"}) {
    for (const int64_t tokens : {64, 256}) measure(exchanging, ranks, model_of(256, tokens, "float32"), layout);
    measure(sharing, 2 * cores, model_of(256, 128, "float32"), layout);
  }

  StepTable& step = hardware.step;
  step = {.origin = hardware.products.origin};
  fit_to_steps(hardware, float32, {{0.9, 2}, {0.9, 1}},
               [&](const std::vector<double>& x) { step.compute_share = x[0], hardware.memory.share = x[1]; });
  fit_to_steps(hardware, bfloat16, {{0.9, 1}}, [&](const std::vector<double>& x) { step.bfloat16_share = x[0]; });
  fit_to_steps(hardware, exchanging, {{5e-5, 1}, {4, 100}},
               [&](const std::vector<double>& x) { step.call_seconds = x[0], step.message_traffic = x[1]; });
  fit_to_steps(hardware, sharing, {{1e-4, 1}}, [&](const std::vector<double>& x) { step.shared_call_seconds = x[0]; });
  fmt::print(stderr, "        these steps have a mean error of {:.0f} %\n", 100 * mean_error(hardware, all));
}

}  // namespace orthant
