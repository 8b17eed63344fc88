// What a run that goes on has otherwise than before.
#pragma once

#include <string>
#include <vector>

#include "plan/config.h"

namespace orthant {

/// "training.steps 300 -> 400": the keys with other values that decide what is learnt, those of the model, the data,
/// the training, the optimizer and its rate.
std::vector<std::string> config_changes(const Config& from, const Config& to);

}  // namespace orthant
