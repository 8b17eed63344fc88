#include "base/named_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace orthant {
namespace {

bool is_legal(unsigned char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' || c == '.';
}

}  // namespace

bool is_set_name(std::string_view name) { return std::ranges::all_of(name, is_legal); }

std::vector<std::string> set_names_of(std::span<const std::string> paths) {
  std::vector<std::string> names;
  std::set<std::string> used;
  for (const std::string& path : paths) {
    std::string name;
    for (const char c : path) {
      if (is_legal(static_cast<unsigned char>(c))) {
        name += c;
      } else if (!name.empty() && name.back() != '-') {
        name += '-';
      }
    }
    if (name.empty()) name = "set";
    std::string unique = name;
    for (int number = 2; !used.insert(unique).second; ++number) unique = fmt::format("{}-{}", name, number);
    names.push_back(unique);
  }
  return names;
}

}  // namespace orthant
