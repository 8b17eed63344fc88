// Refusals of a run file. Each states the law that the file breaks and offers settings that make the run legal.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/errors.h"
#include "config/config.h"

namespace orthant {

/// A key and its new value, written as in TOML.
struct Setting {
  std::string key, value;
  bool operator==(const Setting&) const = default;
};
/// Settings that, applied together, make a refused configuration legal.
using Remedy = std::vector<Setting>;

/// A ConfigError that offers settings: "PROBLEM; set it to 2, or model.dropout to 0.0". "it" stands for `key`. If
/// `key` is empty, the message names every key.
class Refusal : public ConfigError {
 public:
  Refusal(std::string key, std::string problem, std::vector<Remedy> ways);

  std::string key, problem;
  std::vector<Remedy> ways;
};

/// Returns the refusal of `config` with ways out that `check` accepts. If a way breaks another law, the first way out
/// of that refusal that sets other keys is added to it. A way that stays illegal is left out; if all do, the ways stay
/// as they were. `check` must throw ConfigError for an illegal configuration.
Refusal completed(const Refusal& refusal, const Config& config, const std::function<void(const Config&)>& check);

/// Performs the checks of check_config(). A way out in the Refusal thrown may break further laws; see completed().
void check_laws(const Config& config, const BuildFeatures& abilities);

/// Throws ConfigError "model.head_dim = 3 (run.toml:3) <why>".
[[noreturn]] void refuse(const Config& config, std::string_view key, std::string_view why);
/// Throws Refusal "model.head_dim = 3 (run.toml:3) <why>; set it to 4".
[[noreturn]] void refuse(const Config& config, std::string_view key, std::string_view why,
                         const std::vector<Remedy>& ways);

/// Unless `holds`, throws Refusal "parallelism.zero_stage = 1 (run.toml:3): <why>; set it to <legal>". `legal` is one
/// value, or several joined by " or ". `with` lists settings that each of them needs.
void require(const Config& config, std::string_view key, bool holds, std::string_view why, std::string_view legal,
             const Remedy& with = {});

/// Throws Refusal unless the key has its default. Used for settings without effect: a user who sets one is mistaken
/// about the run.
void require_default(const Config& config, std::string_view key, const std::string& why);

/// Returns the divisors of `number` up to 4096 as text: "1, 2 or 4".
std::string divisors(int64_t number);

}  // namespace orthant
