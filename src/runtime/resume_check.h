// Checks that a run may continue from a checkpoint: both must agree on text, tokenizer, model, documents and settings.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "plan/plan.h"
#include "runtime/train_state.h"
#include "runtime/training_data.h"

namespace orthant {

/// Compares the run with the checkpoint before the data are opened, so that a refused run has tokenized and written
/// nothing. It compares the text of data.path, the share of it that is held out, the tokenizer, the model, and the
/// settings that may not change. Only load_train_state() finds a tokenizer that is now trained on the text, if the
/// checkpoint's run read one from a file. Throws as load_train_state() does.
void check_resume_before_data(const LoadedCheckpoint& checkpoint, const Plan& plan);

/// Returns the step and token count of the checkpoint. Throws ConfigError if this run differs in text, tokenizer,
/// model, a setting that may not change, or documents. They are compared in this order, because a tokenizer trained on
/// another text would have another vocabulary, and the message should name the cause. Throws DataError if the state of
/// the checkpoint lacks a field.
TrainState load_train_state(const LoadedCheckpoint& checkpoint, const Plan& plan, const TrainingData& data);

/// Permitted differences from the run file that the checkpoint was written under, as config_changes() describes them.
std::vector<std::string> changes_since_checkpoint(const std::string& directory, const Config& config);

/// Learning rate of the next step, and its value without those changes; it depends on training.steps. Empty if both are
/// equal, no step is left, or the earlier value is not known.
std::string learning_rate_change(const std::string& directory, const Config& config);

}  // namespace orthant
