// Reads the ways out that the text of a ConfigError offers, as settings that can be applied.
#pragma once

#include <algorithm>
#include <optional>
#include <regex>
#include <string>
#include <vector>

#include "config/config.h"
#include "tests/combinations/features.h"

namespace orthant {

inline const std::string kSettingValue =
    R"re(("[^"]*"|\[[^\]]*\]|-?[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?|true|false))re";

// Reads the ways out after a "set ", in the form that ways_out() describes.
class WayReader {
 public:
  WayReader(const std::string& text, size_t begin, const std::string& subject)
      : at_(text.begin() + static_cast<std::ptrdiff_t>(begin)), end_(text.end()), subject_(subject) {}

  std::vector<Settings> read() {
    std::vector<Settings> ways;
    Settings way;
    while (const auto key = take("(?:set )?(it|[a-z_]+\\.[a-z0-9_]+) to (?:at least )?")) {
      const auto value = take(kSettingValue);
      if (!value) break;
      const std::string name = *key == "it" ? subject_ : *key;
      way.push_back(setting(name, *value));
      take("( or (?:less|more))");
      if (take("( and )(?=(?:set )?(?:it|[a-z_]+\\.[a-z0-9_]+) to )")) continue;
      ways.push_back(way);
      while (const auto other = take("(?:, or |, | or )" + kSettingValue)) {
        way.back() = setting(name, *other);
        ways.push_back(way);
      }
      way.clear();
      if (!take("(, or | or )")) break;
    }
    return ways;
  }

 private:
  static std::string setting(const std::string& key, std::string value) {
    if (value.starts_with('"')) value = value.substr(1, value.size() - 2);
    return key + "=" + value;
  }

  std::optional<std::string> take(const std::string& pattern) {
    std::smatch found;
    if (!std::regex_search(at_, end_, found, std::regex(pattern), std::regex_constants::match_continuous)) return {};
    at_ = found.suffix().first;
    return found[1].str();
  }

  std::string::const_iterator at_, end_;
  std::string subject_;
};

/// The first key that a message names; empty if it names none.
inline std::string first_key(const std::string& message) {
  const std::vector<std::string> known = config_keys();
  const std::regex name(R"([a-z_]+\.[a-z0-9_]+)");
  for (std::sregex_iterator at(message.begin(), message.end(), name), end; at != end; ++at)
    if (std::ranges::find(known, at->str()) != known.end()) return at->str();
  return "";
}

/// Each way out of the message: the settings to apply together. The text of a way is "set KEY to VALUE" or "set it to
/// VALUE", where "it" is the first key of the message. " and KEY to VALUE" belongs to the same way; ", or KEY to VALUE"
/// and further values ("1, 2 or 4") begin another. Empty where the message offers nothing that can be applied.
inline std::vector<Settings> ways_out(const std::string& message) {
  std::vector<Settings> ways;
  const std::string subject = first_key(message);
  for (size_t at = message.find("set "); at != std::string::npos; at = message.find("set ", at + 1)) {
    for (const Settings& way : WayReader(message, at, subject).read())
      if (std::ranges::find(ways, way) == ways.end()) ways.push_back(way);
  }
  return ways;
}

/// The message without the origins of its values: "(command line)", "(run.toml:3:1)", "(default)".
inline std::string without_origins(const std::string& message) {
  return std::regex_replace(message, std::regex(R"( \((?:command line|default|run\.toml)[^)]*\))"), "");
}

/// The message without its ways out, origins, numbers, mesh extents and quoted values. All refusals by one law have the
/// same text.
inline std::string law_of(const std::string& message) {
  std::string law = without_origins(message.substr(0, message.rfind("; ")));
  law = std::regex_replace(law, std::regex(R"re(= "[^"]*")re"), "= \"...\"");
  law = std::regex_replace(law, std::regex(R"(\[[0-9, ]*\])"), "[...]");
  law = std::regex_replace(law, std::regex(R"(\b[0-9]+\b)"), "N");
  return std::regex_replace(law, std::regex(R"(\bN ([a-z]+)s\b)"), "N $1");
}

}  // namespace orthant
