// Words refusals.
#include "config/refusal.h"

#include <fmt/format.h>

#include <utility>

#include "config/table.h"

namespace orthant {

Refusal::Refusal(const std::string& law, std::vector<std::string> of_keys, std::vector<double> of_numbers)
    : ConfigError(law), keys(std::move(of_keys)), numbers(std::move(of_numbers)) {}

void refuse(const Config& config, std::string_view key, std::string_view law, const std::vector<std::string>& others,
            const std::vector<double>& numbers) {
  std::vector<std::string> keys = {std::string(key)};
  keys.insert(keys.end(), others.begin(), others.end());
  throw Refusal(fmt::format("{} {}", config.locate(key), law), keys, numbers);
}

bool has_default(const Config& config, std::string_view key) {
  static const Config defaults;
  const Key* entry = find_key(key);
  ORTHANT_CHECK(entry != nullptr, key);
  return value_text(*entry, config) == value_text(*entry, defaults);
}

void require_default(const Config& config, std::string_view key, std::string_view reason_key) {
  if (has_default(config, key)) return;
  refuse(config, key, fmt::format("has no effect with {}", config.locate(reason_key)), {std::string(reason_key)});
}

}  // namespace orthant
