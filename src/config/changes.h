// Compares the configuration of a resumed run with that of the run before it.
#pragma once

#include <string>
#include <vector>

#include "config/config.h"

namespace orthant {

/// Lists the changed keys that affect the trained weights, as "training.steps 300 -> 400". These are the keys of the
/// sections model, data, training, optimizer and lr_scheduler.
std::vector<std::string> config_changes(const Config& from, const Config& to);

}  // namespace orthant
