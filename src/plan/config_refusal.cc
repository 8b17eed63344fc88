#include "plan/config_refusal.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "base/errors.h"
#include "base/text.h"
#include "plan/config_table.h"

namespace orthant {

void refuse(const Config& config, std::string_view key, std::string_view why) {
  throw ConfigError(fmt::format("{} {}", config.locate(key), why));
}

void require(const Config& config, std::string_view key, bool holds, std::string_view why, std::string_view legal) {
  if (!holds) throw ConfigError(fmt::format("{}: {}; set it to {}", config.locate(key), why, legal));
}

std::string divisors(int64_t number) {
  std::vector<std::string> words;
  for (int64_t i = 1; i <= std::min<int64_t>(number, 4096); ++i) {
    if (number % i == 0) words.push_back(fmt::format("{}", i));
  }
  return join_or(words);
}

void require_default(const Config& config, std::string_view key, const std::string& why) {
  const std::string legal = value_text(*find_key(key), Config{});
  require(config, key, value_text(*find_key(key), config) == legal, why, legal);
}

}  // namespace orthant
