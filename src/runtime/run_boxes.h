// What the opening and the closing box of a run say: from its plan, its data and its records to Banner and Summary.
#pragma once

#include "runtime/progress.h"
#include "runtime/trainer.h"

#include <span>

namespace orthant {

Banner banner_of(const Plan& plan, const TrainingData& data, const TrainerOptions& options);

/// What follows from the steps and validations of this process; paths, commands and the sample are the caller's.
Summary summary_of(const Plan& plan, std::span<const StepMetrics> steps,
                   std::span<const ValidationMetrics> validations);

/// "byte tokenizer", "tokenizer of 8000 pieces, trained on it" or "tokenizer jargon.model".
std::string describe_tokenizer(const Config& config);

}  // namespace orthant
