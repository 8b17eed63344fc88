// Fills the Banner from the plan and the data, and the Summary from the metrics of the steps.
#include "runtime/run_banner.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "base/text.h"
#include "config/hf_family.h"
#include "plan/pipeline.h"
#include "runtime/resume_check.h"

namespace orthant {
namespace {

std::string describe_model(const Architecture& a) {
  return fmt::format("{}, vocabulary {}{}", architecture_text(a), a.vocab_size, a.causal() ? "" : ", masked");
}

// "byte tokenizer", "tokenizer of 8000 pieces, trained on this data" or "tokenizer jargon.model".
std::string describe_tokenizer(const Config& config) {
  const std::string& spec = config.data.tokenizer;
  if (spec.starts_with("train:")) return fmt::format("tokenizer of {} pieces, trained on this data", spec.substr(6));
  if (spec.ends_with(".model")) return "tokenizer " + std::filesystem::path(spec).filename().string();
  return spec + " tokenizer";
}

std::string describe_data(const Config& config, const TrainingData& data) {
  const auto& paths = config.data.path;
  return fmt::format(
      "{}{}, {} {}, {}", paths.front(), paths.size() > 1 ? fmt::format(" and {} more", paths.size() - 1) : "",
      format_count(static_cast<double>(data.train.num_tokens())),
      config.data.format == "chat" ? "tokens of conversations" : "training tokens", describe_tokenizer(config));
}

}  // namespace

Banner make_banner(const Plan& plan, const TrainingData& data, const TrainerOptions& options) {
  const Config& c = plan.config;
  Banner b;
  b.version = options.version;
  b.model = describe_model(plan.architecture);
  b.parameters = plan.num_parameters();
  b.data = describe_data(c, data);
  b.tokens = c.training.steps * plan.tokens_per_step();
  b.has_padding = c.data.format == "chat";
  if (c.data.weights.empty()) {  // the datasets of a blend have different numbers of epochs
    b.epochs = static_cast<double>(c.training.steps * c.training.global_batch_size) /
               static_cast<double>(data.train.num_samples());
  }
  b.steps = c.training.steps;
  b.batch = fmt::format("{} of {}, microbatches of {}", counted(c.training.global_batch_size, "sequence"),
                        counted(c.training.seq_len, "token"), c.training.local_batch_size);
  if (const std::string recomputes = recomputation_text(c); !recomputes.empty()) b.batch += ", " + recomputes;
  b.ranks = plan.mesh.size();
  b.mesh = plan.mesh_and_kind();
  if (plan.mesh.axis_size(kPipeline) > 1) b.mesh += "; " + schedule_text(c);
  b.device = fmt::format("{}, {}, {}", c.run.device, c.training.dtype, c.optimizer.name);
  b.threads_per_rank = options.threads;
  b.memory_expected_bytes = plan.largest_memory_bytes();
  b.warnings = options.warnings;
  b.output_folder = c.job.dump_folder;
  b.resumed_from = options.resume_from;
  if (!options.resume_from.empty()) {
    const std::vector<std::string> changes = changes_since_checkpoint(options.resume_from, c);
    if (!changes.empty()) b.resumed_from += "; changed since: " + join(changes, ", ");
    b.learning_rate = learning_rate_change(options.resume_from, c);
  }
  return b;
}

Summary make_summary(const Plan& plan, std::span<const StepMetrics> steps,
                     std::span<const ValidationMetrics> validations) {
  Summary s;
  s.steps = static_cast<int64_t>(steps.size());
  s.memory_expected_bytes = plan.largest_memory_bytes();
  if (plan.step_time) s.step_seconds_planned = plan.step_time->seconds;
  if (!steps.empty()) {
    std::vector<double> seconds, rates;
    double waited = 0, spent = 0;
    for (const auto& m : steps) {
      seconds.push_back(m.step_seconds);
      rates.push_back(m.tokens_per_second);
      waited += m.communication_seconds;
      spent += m.step_seconds;
    }
    // Steps without labels have no loss, and that of a skipped step may not be finite.
    const auto has_loss = [](const StepMetrics& m) { return std::isfinite(m.loss); };
    if (const auto first = std::ranges::find_if(steps, has_loss); first != steps.end()) {
      s.first_loss = first->loss;
      s.last_loss = std::find_if(steps.rbegin(), steps.rend(), has_loss)->loss;
    }
    s.tokens_per_second_median = median(rates);
    s.step_seconds_median = median(seconds);
    s.communication_share = waited / spent;
    s.peak_memory_bytes = steps.back().peak_memory_bytes;
  }
  const auto best = std::ranges::min_element(validations, {}, &ValidationMetrics::validation_loss);
  if (best != validations.end()) {
    s.best_validation_loss = best->validation_loss;
    s.best_validation_step = best->step;
    s.best_bits_per_byte = best->bits_per_byte;
  }
  return s;
}

}  // namespace orthant
