// Fills the Banner and the Summary of a run from its plan, data and metrics.
#pragma once

#include <span>

#include "report/progress.h"
#include "runtime/trainer.h"

namespace orthant {

Banner make_banner(const Plan& plan, const TrainingData& data, const TrainerOptions& options);

/// Fills the fields that follow from the steps and validations of this process. The caller fills in the rest: training
/// seconds, paths, commands and the sample.
Summary make_summary(const Plan& plan, std::span<const StepMetrics> steps,
                     std::span<const ValidationMetrics> validations);

/// "byte tokenizer", "tokenizer of 8000 pieces, trained on this data" or "tokenizer jargon.model".
std::string describe_tokenizer(const Config& config);

}  // namespace orthant
