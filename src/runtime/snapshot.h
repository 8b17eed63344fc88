// Moves the state of a running Session to and from a checkpoint on disk: tensors by global name, and the run's
// position.
#pragma once

#include "checkpoint/checkpoint.h"
#include "plan/plan.h"
#include "runtime/session.h"
#include "runtime/training_data.h"

#include <cstdint>
#include <string>

namespace orthant {

/// The position of a run: everything that does not follow from the plan.
struct TrainState {
  int64_t step = 0;    // completed
  int64_t tokens = 0;  // of all ranks
  std::optional<double> norm = {};  // of the last update's gradients; earlier versions did not save it
  int64_t skipped_steps = 0;        // of the completed steps, those without an update
};

/// Writes DUMP/checkpoints/step-NNNNNN: weights with Hugging Face's names and shapes, masters if their dtype differs,
/// optimizer state, tokenizer, and the effective run file. All ranks must call it together. Rank 0 writes, and holds
/// one unsharded tensor at a time. Returns the directory.
std::string save_snapshot(const Plan& plan, const TrainingData& data, Session& session, const TrainState& state);

/// Loads this rank's shards of masters and optimizer state, and sets the working values. All checks come before the
/// first byte is copied. Throws ConfigError if the checkpoint belongs to another model, optimizer or other data than
/// the run file's, and DataError if it is damaged.
TrainState load_snapshot(const std::string& directory, const Plan& plan, const TrainingData& data, Session& session,
                       Verify verify);

/// Loads only weights, from a Hugging Face directory in the form of its own family, into masters and working values.
/// Throws DataError, also for values that are not finite.
void load_weights(const std::string& directory, Weights& weights);

/// Sets the weights before step 1. They come from model.from if that is set and training.seed_weights is false;
/// otherwise they are drawn from the seed.
void load_first_weights(const Plan& plan, Weights& weights);

}  // namespace orthant
