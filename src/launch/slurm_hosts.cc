// Parses Slurm's host lists. Commas outside brackets separate names. pre[1-3,7,010-012]post expands to one name per
// number and keeps leading zeros. With several brackets in a name, the rightmost varies fastest.
#include <charconv>
#include <cstdint>

#include "base/errors.h"
#include "base/text.h"
#include "launch/launch.h"

namespace orthant {
namespace {

constexpr size_t kMostHosts = 1 << 20;

[[noreturn]] void malformed(const std::string& list, const std::string& part) {
  throw ConfigError(fmt::format("cannot read \"{}\" in Slurm's host list {}", part, list));
}

int64_t number(const std::string& list, const std::string& digits) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (digits.empty() || error != std::errc() || end != digits.data() + digits.size() || value < 0)
    malformed(list, digits);
  return value;
}

// Expands "1-3,7,010-012" into all its numbers, as text.
std::vector<std::string> expand_numbers(const std::string& list, const std::string& inside) {
  std::vector<std::string> out;
  for (const auto& range : split(inside, ',')) {
    const size_t dash = range.find('-');
    const std::string first = range.substr(0, dash);
    const std::string last = dash == std::string::npos ? first : range.substr(dash + 1);
    const int64_t from = number(list, first), to = number(list, last);
    if (to < from || to - from >= static_cast<int64_t>(kMostHosts)) malformed(list, range);
    for (int64_t i = from; i <= to; ++i) out.push_back(fmt::format("{:0{}}", i, first.size()));
  }
  return out;
}

// Expands one name with any number of brackets.
std::vector<std::string> expand_name(const std::string& list, const std::string& name) {
  std::vector<std::string> out{""};
  for (size_t at = 0; at < name.size();) {
    const size_t open = std::min(name.find('[', at), name.size());
    for (auto& prefix : out) prefix += name.substr(at, open - at);
    if (open == name.size()) break;
    const size_t close = name.find(']', open);
    if (close == std::string::npos) malformed(list, name);
    std::vector<std::string> longer;
    const auto numbers = expand_numbers(list, name.substr(open + 1, close - open - 1));
    if (out.size() * numbers.size() > kMostHosts) malformed(list, name);
    for (const auto& prefix : out) {
      for (const auto& digits : numbers) longer.push_back(prefix + digits);
    }
    out = std::move(longer);
    at = close + 1;
  }
  return out;
}

}  // namespace

std::vector<std::string> slurm_hosts(const std::string& list) {
  std::vector<std::string> hosts;
  std::string name;
  int depth = 0;
  const auto finish = [&] {
    if (!name.empty()) {
      for (auto& host : expand_name(list, name)) hosts.push_back(std::move(host));
    }
    name.clear();
  };
  for (const char c : list) {
    depth += (c == '[') - (c == ']');
    if (depth < 0 || depth > 1) malformed(list, list);
    if (depth == 0 && (c == ',' || c == ' ')) {
      finish();
    } else {
      name += c;
    }
  }
  if (depth != 0) malformed(list, name);
  finish();
  if (hosts.empty()) malformed(list, list);
  return hosts;
}

}  // namespace orthant
