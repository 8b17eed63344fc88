// Builds the Banner and the Summary of a run (report/progress.h). Rank 0 calls these functions.
#pragma once

#include <span>

#include "report/progress.h"
#include "runtime/trainer.h"

namespace orthant {

/// Returns the banner, except `transport`, which the caller sets. If options.resume_from is set, it reads that
/// checkpoint's run file to describe the changed settings; it does not throw if the file cannot be read.
Banner make_banner(const Plan& plan, const TrainingData& data, const TrainerOptions& options);

/// Returns the summary of this process's steps, as rank 0 measured them. The caller sets seconds, stopped, checkpoint,
/// report, resume_command, sample_command and sample_text.
Summary make_summary(const Plan& plan, std::span<const StepMetrics> steps,
                     std::span<const ValidationMetrics> validations);

}  // namespace orthant
