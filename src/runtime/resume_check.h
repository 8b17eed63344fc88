// What a checkpoint and the run that goes on from it must have in common.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "plan/plan.h"
#include "runtime/snapshot.h"
#include "runtime/training_data.h"

namespace orthant {

/// Compares the run with the checkpoint before the data are opened, so that a refused run has tokenized and written
/// nothing: the text of data.path, the share of it that is held out, the tokenizer, the model, and the settings that
/// would change the run. One case is found only by state_to_go_on_from(), after the text is tokenized: a tokenizer
/// that is now trained on the text, where the checkpoint's run read one from a file. Throws as state_to_go_on_from().
void check_resume_before_data(const LoadedCheckpoint& checkpoint, const Plan& plan);

/// Where the checkpoint's run stood. Throws ConfigError where this run has another text, tokenizer, model, settings
/// that would change the run, or documents. They are compared in this order: a tokenizer may have been trained on the
/// text, and brings its own vocabulary and its own tokens.
TrainState state_to_go_on_from(const LoadedCheckpoint& checkpoint, const Plan& plan, const TrainingData& data);

/// What the run has otherwise than when it wrote that checkpoint, as config_changes() says, and may have.
std::vector<std::string> changes_since(const std::string& directory, const Config& config);

/// The learning rate of the next step, and what it would have been without those changes: it follows training.steps.
/// Empty where it is the same, where no step is left, or where that is not known.
std::string rate_since(const std::string& directory, const Config& config);

}  // namespace orthant
