// Finds the settings nearest to a refused run file that make the run legal.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "config/refusal.h"

namespace orthant {

/// A key and its new value, written as in TOML.
struct Setting {
  std::string key, value;
  bool operator==(const Setting&) const = default;
};
/// Settings that, applied together, make a refused configuration legal.
using Remedy = std::vector<Setting>;

/// Returns the configuration with the settings applied, or nullopt if a value is illegal by itself.
std::optional<Config> with_settings(Config config, const Remedy& remedy);

/// Returns at most three remedies that `check` accepts, those with the fewest settings first, or none. Each begins with
/// a key of the refusal. If a new value breaks a further law, the remedy also sets a key of that law. `check` must
/// throw Refusal or another ConfigError for an illegal configuration. It is called at most a few thousand times.
std::vector<Remedy> nearest_legal(const Config& config, const Refusal& refusal,
                                  const std::function<void(const Config&)>& check);

/// Returns the error "LAW; set it to 2 or 4, or model.dropout to 0.0", where "it" is the first key of the refusal.
ConfigError with_remedies(const Refusal& refusal, const std::vector<Remedy>& remedies);

}  // namespace orthant
