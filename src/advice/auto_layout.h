// Resolves layout = "auto" by a search for the machine of the run.
#pragma once

#include <memory>

#include "plan/plan.h"

namespace orthant {

/// The machine to plan for, as the ranks use it: run.hardware, or else h100-8x for CUDA devices, or else nullptr.
/// Throws as load_hardware().
std::shared_ptr<const Hardware> find_hardware(const Config& config, int ranks);

/// Resolves parallelism.layout = "auto": returns the configuration with the fastest layout that fits. The hardware is
/// facts.hardware, or else that of find_hardware(), or else this-cpu. Returns other configurations as they are.
/// Throws ConfigError if no layout fits, with the layout that needs least memory, or with the law that excludes all.
Config with_chosen_layout(const Config& config, const RunFacts& facts);

}  // namespace orthant
