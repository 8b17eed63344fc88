// Between a running Session and a checkpoint on disk: tensors by global name, and where in the run it stands.
#pragma once

#include "checkpoint/checkpoint.h"
#include "plan/plan.h"
#include "runtime/session.h"
#include "runtime/training_data.h"

#include <cstdint>
#include <string>

namespace orthant {

/// Where a run stands: everything that does not follow from the plan.
struct TrainState {
  int64_t step = 0;    // steps done
  int64_t tokens = 0;  // seen, all ranks together
};

/// Writes DUMP/checkpoints/step-NNNNNN: weights in Hugging Face's names and layout, masters where they differ, moments,
/// tokenizer, effective run file. All ranks call it: rank 0 writes, and holds of the others' one tensor at a time.
/// Returns the directory.
std::string save_snapshot(const Plan& plan, const TrainingData& data, Session& session, const TrainState& state);

/// Loads this rank's parts of masters, moments and working values; every check comes before the first byte is copied.
/// ConfigError when the checkpoint is of another model or other data than the run file's; DataError when it is damaged.
TrainState load_snapshot(const std::string& directory, const Plan& plan, const TrainingData& data, Session& session,
                       Verify verify);

/// Weights alone, from a Hugging Face directory, into a session's masters and working values.
void load_weights(const std::string& directory, const Architecture& architecture, Weights& weights);

/// Sets the weights that step 1 starts from. They come from model.from if that is set and training.seed_weights is
/// false; otherwise they are drawn from the seed.
void load_first_weights(const Plan& plan, Weights& weights);

HfConfig hf_config_of(const Architecture& architecture, Dtype dtype, int64_t end_of_text);
Architecture architecture_of(const HfConfig& config);

}  // namespace orthant
