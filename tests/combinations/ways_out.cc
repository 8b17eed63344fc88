// Reads keys and offered settings from a refusal by regular expressions, and reduces its text to the law.
#include "tests/combinations/ways_out.h"

#include <algorithm>
#include <optional>
#include <regex>

#include "config/config.h"

namespace orthant {
namespace {

const std::string kValue = R"re(("[^"]*"|\[[^\]]*\]|-?[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?|true|false))re";

// Reads the ways out after a "set ", in the form that ways_out.h describes.
class WayReader {
 public:
  WayReader(const std::string& text, size_t begin, const std::string& subject)
      : at_(text.begin() + static_cast<std::ptrdiff_t>(begin)), end_(text.end()), subject_(subject) {}

  std::vector<Settings> read() {
    std::vector<Settings> ways;
    Settings way;
    while (const auto key = take("(?:set )?(it|[a-z_]+\\.[a-z0-9_]+) to (?:at least )?")) {
      const auto value = take(kValue);
      if (!value) break;
      const std::string name = *key == "it" ? subject_ : *key;
      way.push_back(setting(name, *value));
      take("( or (?:less|more))");
      if (take("( and )(?=(?:set )?(?:it|[a-z_]+\\.[a-z0-9_]+) to )")) continue;
      ways.push_back(way);
      while (const auto other = take("(?:, or |, | or )" + kValue)) {
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

}  // namespace

std::string first_key(const std::string& message) {
  const std::vector<std::string> known = config_keys();
  const std::regex name(R"([a-z_]+\.[a-z0-9_]+)");
  for (std::sregex_iterator at(message.begin(), message.end(), name), end; at != end; ++at)
    if (std::ranges::find(known, at->str()) != known.end()) return at->str();
  return "";
}

std::vector<Settings> ways_out(const std::string& message) {
  std::vector<Settings> ways;
  const std::string subject = first_key(message);
  for (size_t at = message.find("set "); at != std::string::npos; at = message.find("set ", at + 1)) {
    for (const Settings& way : WayReader(message, at, subject).read())
      if (std::ranges::find(ways, way) == ways.end()) ways.push_back(way);
  }
  return ways;
}

std::string without_origins(const std::string& message) {
  return std::regex_replace(message, std::regex(R"( \((?:command line|default|run\.toml)[^)]*\))"), "");
}

std::string law_of(const std::string& message) {
  std::string law = without_origins(message.substr(0, message.rfind("; ")));
  law = std::regex_replace(law, std::regex(R"re(= "[^"]*")re"), "= \"...\"");
  law = std::regex_replace(law, std::regex(R"(\[[0-9, ]*\])"), "[...]");
  law = std::regex_replace(law, std::regex(R"(\b[0-9]+\b)"), "N");
  return std::regex_replace(law, std::regex(R"(\bN ([a-z]+)s\b)"), "N $1");
}

}  // namespace orthant
