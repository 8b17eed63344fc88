// Writes refusals with their ways out, and completes ways out that break further laws.
#include "config/refusal.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "base/text.h"
#include "config/table.h"

namespace orthant {
namespace {

// Limit of the settings in one way out. No configuration breaks that many laws.
constexpr size_t kMostSettings = 12;

std::string text_of(const std::string& key, const Remedy& way) {
  std::vector<std::string> words;
  for (const Setting& setting : way)
    words.push_back(fmt::format("{} to {}", setting.key == key ? "it" : setting.key, setting.value));
  return join(words, " and ");
}

// Returns "; set it to 1, 2 or 4, or model.dropout to 0.0". Consecutive ways that set the same single key are joined.
std::string text_of(const std::string& key, const std::vector<Remedy>& ways) {
  if (ways.empty()) return "";
  std::vector<std::string> words;
  for (size_t begin = 0; begin < ways.size();) {
    const auto same = [&](const Remedy& way) { return way.size() == 1 && way[0].key == ways[begin][0].key; };
    size_t end = begin;
    std::vector<std::string> values;
    for (; end < ways.size() && same(ways[end]); ++end) values.push_back(ways[end][0].value);
    words.push_back(values.empty() ? text_of(key, ways[begin])
                                   : text_of(key, Remedy{{ways[begin][0].key, join_or(values)}}));
    begin = std::max(end, begin + 1);
  }
  return "; set " + join(words, ", or ");
}

// Returns the configuration with the settings applied, or nullopt if a value is illegal by itself.
std::optional<Config> with(Config config, const Remedy& way) {
  for (const Setting& setting : way) {
    const Key* key = find_key(setting.key);
    ORTHANT_CHECK(key != nullptr, setting.key);
    const bool is_text = setting.value.starts_with('"');
    const std::string word = is_text ? setting.value.substr(1, setting.value.size() - 2) : setting.value;
    if (set_from_word(*key, config, word) || illegal(*key, config)) return {};
    config.origins[setting.key] = "a way out";
  }
  return config;
}

// Returns the first way that sets none of the keys of `settings`; nullopt if there is no such way.
std::optional<Remedy> find_first_independent(const Remedy& settings, const std::vector<Remedy>& ways) {
  const auto is_free = [&](const Setting& one) {
    return std::ranges::find(settings, one.key, &Setting::key) == settings.end();
  };
  const auto found = std::ranges::find_if(ways, [&](const Remedy& way) { return std::ranges::all_of(way, is_free); });
  return found == ways.end() ? std::nullopt : std::optional(*found);
}

// Extends the way by the settings that further laws require. Returns nullopt if that leads to no legal configuration.
std::optional<Remedy> complete_remedy(Remedy way, const Config& config,
                                      const std::function<void(const Config&)>& check) {
  while (way.size() <= kMostSettings) {
    const std::optional<Config> other = with(config, way);
    if (!other) return {};
    try {
      check(*other);
      return way;
    } catch (const Refusal& next) {
      const std::optional<Remedy> more = find_first_independent(way, next.ways);
      if (!more || more->empty()) return {};
      way.insert(way.end(), more->begin(), more->end());
    } catch (const ConfigError&) {
      return {};
    }
  }
  return {};
}

}  // namespace

Refusal::Refusal(std::string of_key, std::string of_problem, std::vector<Remedy> of_ways)
    : ConfigError(of_problem + text_of(of_key, of_ways)),
      key(std::move(of_key)),
      problem(std::move(of_problem)),
      ways(std::move(of_ways)) {}

Refusal completed(const Refusal& refusal, const Config& config, const std::function<void(const Config&)>& check) {
  std::vector<Remedy> ways;
  for (const Remedy& way : refusal.ways) {
    const auto complete = complete_remedy(way, config, check);
    if (complete && std::ranges::find(ways, *complete) == ways.end()) ways.push_back(*complete);
  }
  return {refusal.key, refusal.problem, ways.empty() ? refusal.ways : ways};
}

void refuse(const Config& config, std::string_view key, std::string_view why) {
  throw ConfigError(fmt::format("{} {}", config.locate(key), why));
}

void refuse(const Config& config, std::string_view key, std::string_view why, const std::vector<Remedy>& ways) {
  throw Refusal(std::string(key), fmt::format("{} {}", config.locate(key), why), ways);
}

void require(const Config& config, std::string_view key, bool holds, std::string_view why, std::string_view legal,
             const Remedy& with) {
  if (holds) return;
  std::vector<Remedy> ways;
  for (size_t begin = 0; begin <= legal.size();) {
    const size_t end = std::min(legal.find(" or ", begin), legal.size());
    ways.push_back({{std::string(key), std::string(legal.substr(begin, end - begin))}});
    ways.back().insert(ways.back().end(), with.begin(), with.end());
    begin = end + 4;
  }
  throw Refusal(std::string(key), fmt::format("{}: {}", config.locate(key), why), ways);
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
