// How the checks of a run file refuse what it asks for.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "plan/config.h"

namespace orthant {

/// ConfigError "model.head_dim = 3 (run.toml:3) <why>".
[[noreturn]] void refuse(const Config& config, std::string_view key, std::string_view why);

/// Unless it holds, ConfigError "parallelism.zero_stage = 1 (run.toml:3): <why>; set it to <legal>".
void require(const Config& config, std::string_view key, bool holds, std::string_view why, std::string_view legal);

/// The same of a setting that would change nothing, which is a mistake about what runs.
void require_default(const Config& config, std::string_view key, const std::string& why);

/// "1, 2 or 4".
std::string divisors(int64_t number);

}  // namespace orthant
