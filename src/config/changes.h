// Compares configurations: that of a resumed run with the one before it, and those of several runs.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "config/config.h"

namespace orthant {

/// Lists the changed keys that affect the trained weights, as "training.steps 300 -> 400". These are the keys of the
/// sections model, data, training, optimizer and lr_scheduler.
std::vector<std::string> config_changes(const Config& from, const Config& to);

/// A key with its value in each configuration, written as in TOML; empty where the configuration is unknown.
struct KeyValues {
  std::string key;
  std::vector<std::string> values;
};

/// Returns the keys of which the known configurations have different values, in the order of config_table().
std::vector<KeyValues> differing_keys(std::span<const std::optional<Config>> configs);

}  // namespace orthant
