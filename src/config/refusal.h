// Refusals of a run file. A refusal states the law that the file breaks, with the keys and the numbers of that law.
// nearest_legal() of advice/ finds settings that make the run legal.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/errors.h"
#include "config/config.h"

namespace orthant {

/// A ConfigError for a broken law: "model.head_dim = 3 (run.toml:3) must be even". The search for a legal run changes
/// `keys`, preferably the first. A legal value is often one of `numbers`, or one of their divisors or multiples.
class Refusal : public ConfigError {
 public:
  Refusal(const std::string& law, std::vector<std::string> keys, std::vector<double> numbers = {});

  std::vector<std::string> keys;
  std::vector<double> numbers;
};

/// Throws Refusal "model.head_dim = 3 (run.toml:3) LAW". `others` are further keys of the law.
[[noreturn]] void refuse(const Config& config, std::string_view key, std::string_view law,
                         const std::vector<std::string>& others = {}, const std::vector<double>& numbers = {});

/// True if the key has its default.
bool has_default(const Config& config, std::string_view key);

/// Throws Refusal unless the key has its default, because the key has no effect while `reason_key` has its value.
void require_default(const Config& config, std::string_view key, std::string_view reason_key);

}  // namespace orthant
