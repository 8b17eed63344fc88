// Refusals of a run file: each states the law that the file breaks, and offers settings that make the run legal.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/errors.h"
#include "plan/config.h"

namespace orthant {

/// A key and the value to give it, as TOML writes the value.
struct Setting {
  std::string key, value;
  bool operator==(const Setting&) const = default;
};
/// Settings that make a refused configuration legal when they are applied together.
using WayOut = std::vector<Setting>;

/// A ConfigError that offers settings: "PROBLEM; set it to 2, or model.dropout to 0.0". "it" stands for `key`; if `key`
/// is empty, the message writes every key in full.
class Refusal : public ConfigError {
 public:
  Refusal(std::string key, std::string problem, std::vector<WayOut> ways);

  std::string key, problem;
  std::vector<WayOut> ways;
};

/// Returns the refusal of `config` with ways out that `check` accepts. If a way breaks another law, the first way out
/// of that refusal is added to it. A way that stays illegal is left out; if all do, the ways stay as they were.
/// `check` throws ConfigError.
Refusal completed(const Refusal& refusal, const Config& config, const std::function<void(const Config&)>& check);

/// Makes the checks of check_config(). The ways out of its Refusal may break other laws.
void check_laws(const Config& config, const Abilities& abilities);

/// ConfigError "model.head_dim = 3 (run.toml:3) <why>".
[[noreturn]] void refuse(const Config& config, std::string_view key, std::string_view why);
/// Refusal "model.head_dim = 3 (run.toml:3) <why>; set it to 4".
[[noreturn]] void refuse(const Config& config, std::string_view key, std::string_view why,
                         const std::vector<WayOut>& ways);

/// Unless it holds, Refusal "parallelism.zero_stage = 1 (run.toml:3): <why>; set it to <legal>". `legal`: the value, or
/// values joined by " or ". `with`: settings that each of these values requires.
void require(const Config& config, std::string_view key, bool holds, std::string_view why, std::string_view legal,
             const WayOut& with = {});

/// The same of a setting that would change nothing, which is a mistake about what runs.
void require_default(const Config& config, std::string_view key, const std::string& why);

/// "1, 2 or 4".
std::string divisors(int64_t number);

}  // namespace orthant
