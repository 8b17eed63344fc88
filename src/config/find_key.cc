// The search for keys of the table by name.
#include <algorithm>

#include "base/text.h"
#include "config/table.h"

namespace orthant {

std::string normal_key(std::string_view text) {
  std::string out(text);
  std::replace(out.begin(), out.end(), '-', '_');
  return out;
}

const Key* find_key(std::string_view full_name) {
  const std::string wanted = normal_key(full_name);
  const size_t dot = wanted.find('.');
  if (dot == std::string::npos) return nullptr;
  const std::string_view section = std::string_view(wanted).substr(0, dot);
  const std::string_view name = std::string_view(wanted).substr(dot + 1);
  for (const Key& key : config_table()) {
    if (key.section == section && key.name == name) return &key;
  }
  return nullptr;
}

std::vector<std::string> keys_named(std::string_view name) {
  std::vector<std::string> names;
  const std::string wanted = normal_key(name);
  for (const Key& key : config_table()) {
    if (key.name == wanted) names.push_back(key.full_name());
  }
  return names;
}

std::string suggest_key(std::string_view section, std::string_view name) {
  const std::string wanted = normal_key(name);
  const auto sections = config_sections();
  std::string wanted_section = normal_key(section);
  const bool known = !section_help(wanted_section).empty();
  if (!known) wanted_section = nearest(wanted_section, sections).value_or("");
  const std::vector<std::string> elsewhere = keys_named(name);
  std::vector<std::string> siblings;
  for (const Key& key : config_table()) {
    if (key.section == wanted_section) siblings.emplace_back(key.name);
  }
  if (const auto sibling = nearest(wanted, siblings)) return "did you mean " + wanted_section + "." + *sibling + "?";
  if (!elsewhere.empty()) return "did you mean " + join_or(elsewhere) + "?";
  if (known) return "[" + wanted_section + "] has " + join(siblings, ", ");
  return "the sections are " + join(sections, ", ");
}

std::string suggest_section(std::string_view section) {
  const auto sections = config_sections();
  if (const auto name = nearest(normal_key(section), sections)) return "did you mean [" + *name + "]?";
  return "the sections are " + join(sections, ", ");
}

}  // namespace orthant
