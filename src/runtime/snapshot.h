// Loads the state of a Session from a checkpoint on disk: tensors by global name, and the run's position.
#pragma once

#include <string>

#include "checkpoint/checkpoint.h"
#include "plan/plan.h"
#include "runtime/session.h"
#include "runtime/train_state.h"
#include "runtime/training_data.h"

namespace orthant {

/// Loads this rank's shards of masters and optimizer state, and sets the working values. Opens the files that hold
/// elements that the rank keeps, and those that it checks. All checks come before the first byte is copied. Throws
/// ConfigError if the checkpoint belongs to another model, optimizer or other data than the run file's, and DataError
/// if it is damaged.
TrainState load_snapshot(const std::string& directory, const Plan& plan, const TrainingData& data, Session& session,
                         ChecksummedFiles checksummed = kAllFiles);

/// Loads only weights, from a Hugging Face directory in the form of its own family, into masters and working values.
/// Throws DataError, also for values of this rank that are not finite.
void load_weights(const std::string& directory, Weights& weights);

/// Sets the weights before step 1. They come from model.from if that is set and training.seed_weights is false;
/// otherwise they are drawn from the seed.
void load_first_weights(const Plan& plan, Weights& weights);

}  // namespace orthant
