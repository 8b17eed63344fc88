// Reads the TOML text of a run file into a Config.
#include <toml++/toml.h>

#include <algorithm>
#include <cctype>
#include <set>
#include <sstream>

#include "base/errors.h"
#include "base/text.h"
#include "base/toml_depth.h"
#include "config/table.h"

namespace orthant {
namespace {

using Problem = std::optional<std::string>;

std::string place(const std::string& name, const toml::source_region& region) {
  return fmt::format("{}:{}:{}", name, region.begin.line, region.begin.column);
}

// Returns the node on one line, as in the file, and shortened to 60 characters.
std::string node_text(const toml::node& node) {
  constexpr size_t kMost = 60;
  std::ostringstream out;
  node.visit([&](const auto& value) { out << value; });
  std::string text = out.str();
  for (char& letter : text) {
    if (letter == '\n') letter = ' ';
  }
  return text.size() <= kMost ? text : text.substr(0, kMost) + "...";
}

// Returns a hint to add quotes if the line's value is a word without quotes, else an empty text.
std::string quotes_missing(std::string_view text, size_t line) {
  const auto lines = split(text, '\n');
  if (line == 0 || line > lines.size()) return "";
  const std::string& at = lines[line - 1];
  const size_t equals = at.find('=');
  if (equals == std::string::npos) return "";
  const std::string value(trim(at.substr(equals + 1, at.find('#') - equals - 1)));
  const bool has_letter = std::ranges::any_of(value, [](unsigned char letter) { return std::isalpha(letter) != 0; });
  if (!has_letter || value.find_first_of("\"'[{") != std::string::npos) return "";
  return fmt::format("; text needs quotes: {} = {}", trim(at.substr(0, equals)), toml_quoted(value));
}

std::optional<std::vector<std::string>> to_strings(const toml::node& node) {
  if (const auto word = node.value_exact<std::string>()) return std::vector<std::string>{*word};
  const toml::array* items = node.as_array();
  if (items == nullptr) return {};
  std::vector<std::string> words;
  for (const toml::node& item : *items) {
    const auto word = item.value_exact<std::string>();
    if (!word) return {};
    words.push_back(*word);
  }
  return words;
}

struct SetFromNode {
  const toml::node& node;

  template <typename T>
  Problem exact(T* value, const char* wanted) const {
    const auto found = node.value_exact<T>();
    if (!found) return std::string("must be ") + wanted;
    *value = *found;
    return {};
  }

  Problem operator()(bool* value) const { return exact(value, "true or false"); }
  Problem operator()(int64_t* value) const { return exact(value, "a whole number"); }
  Problem operator()(std::string* value) const { return exact(value, "a string in quotes"); }
  Problem operator()(double* value) const {
    if (!node.is_number()) return "must be a number";
    *value = *node.value<double>();
    return {};
  }
  Problem operator()(std::vector<std::string>* value) const {
    const auto words = to_strings(node);
    if (!words) return "must be a list of strings";
    *value = *words;
    return {};
  }
  Problem operator()(std::vector<int64_t>* value) const {
    constexpr const char* kWanted = "must be a list of whole numbers, as in [3, 4, 3]";
    const toml::array* items = node.as_array();
    if (items == nullptr) return kWanted;
    value->clear();
    for (const toml::node& item : *items) {
      const auto number = item.value_exact<int64_t>();
      if (!number) return kWanted;
      value->push_back(*number);
    }
    return {};
  }
  Problem operator()(std::vector<double>* value) const {
    constexpr const char* kWanted = "must be a list of numbers, as in [0.7, 0.3]";
    const toml::array* items = node.as_array();
    if (items == nullptr) return kWanted;
    value->clear();
    for (const toml::node& item : *items) {
      if (!item.is_number()) return kWanted;
      value->push_back(*item.value<double>());
    }
    return {};
  }
  Problem operator()(std::array<int64_t, 3>* value) const {
    const toml::array* items = node.as_array();
    if (items == nullptr || items->size() != 3) return "must be a list of 3 whole numbers, as in [2, 2, 1]";
    for (size_t i = 0; i < 3; ++i) {
      const auto number = (*items)[i].value_exact<int64_t>();
      if (!number) return "must be a list of 3 whole numbers, as in [2, 2, 1]";
      (*value)[i] = *number;
    }
    return {};
  }
  Problem operator()(HeldOut* value) const {
    if (node.is_number()) {
      *value = {*node.value<double>(), {}};
      return {};
    }
    std::vector<NamedFiles> sets;
    const auto add = [&](std::string_view name, const toml::node& list) {
      auto files = to_strings(list);
      const bool ok = files && !files->empty();
      if (ok) sets.push_back({std::string(name), std::move(*files)});
      return ok;
    };
    if (const toml::table* table = node.as_table()) {
      for (const auto& [name, list] : *table) {
        if (name.str().empty() || !add(name.str(), list)) return kHeldOutLaw;
      }
    } else if (!add("", node)) {
      return kHeldOutLaw;
    }
    if (sets.empty()) return kHeldOutLaw;
    *value = {0.0, std::move(sets)};
    return {};
  }
};

void set_key(Config& config, const std::string& section, const toml::key& name, const toml::node& node,
             const std::string& file) {
  const Key* key = find_key(section + "." + std::string(name.str()));
  if (key == nullptr) {
    throw ConfigError(fmt::format("{}: unknown key {}.{}; {}", place(file, name.source()), section,
                                  normal_key(name.str()), suggest_key(section, name.str())));
  }
  Problem problem = std::visit(SetFromNode{node}, key->field(config));
  if (!problem) problem = illegal(*key, config);
  if (problem) {
    throw ConfigError(
        fmt::format("{} = {} ({}) {}", key->full_name(), node_text(node), place(file, node.source()), *problem));
  }
  config.origins[key->full_name()] = fmt::format("{}:{}", file, name.source().begin.line);
}

void set_section(Config& config, const toml::key& name, const toml::node& node, const std::string& file,
                 std::set<std::string>& seen) {
  const std::string section = normal_key(name.str());
  if (!node.is_table()) {
    const std::string where = place(file, name.source());
    if (section_help(section).empty()) {
      throw ConfigError(
          fmt::format("{}: key {} stands outside of any section; {}", where, section, suggest_key("", section)));
    }
    throw ConfigError(fmt::format("{}: {} is a section; write [{}]", where, section, section));
  }
  if (section_help(section).empty()) {
    throw ConfigError(
        fmt::format("{}: unknown section [{}]; {}", place(file, name.source()), section, suggest_section(section)));
  }
  for (const auto& [key, value] : *node.as_table()) {
    if (!seen.insert(section + "." + normal_key(key.str())).second) {
      throw ConfigError(fmt::format("{}: {}.{} is given twice, with '-' and with '_'", place(file, key.source()),
                                    section, normal_key(key.str())));
    }
    set_key(config, section, key, value, file);
  }
}

}  // namespace

std::optional<std::string> set_held_out_from_table(HeldOut& value, std::string_view text) {
  if (line_of_deep_key(text)) return kHeldOutLaw;
  try {
    const toml::table table = toml::parse(fmt::format("value = {}", text));
    if (table.size() != 1) return kHeldOutLaw;
    return SetFromNode{*table.get("value")}(&value);
  } catch (const toml::parse_error& error) {
    return fmt::format("must be an inline table of TOML: {}", error.description());
  }
}

void apply_toml(Config& config, std::string_view text, const std::string& name) {
  if (const auto line = line_of_deep_key(text)) {
    throw ConfigError(fmt::format("{}:{}: a key must have at most {} parts", name, *line, kMostKeyParts));
  }
  toml::table table;
  try {
    table = toml::parse(text);
  } catch (const toml::parse_error& error) {
    throw ConfigError(fmt::format("{}: {}{}", place(name, error.source()), error.description(),
                                  quotes_missing(text, error.source().begin.line)));
  }
  std::set<std::string> seen;
  for (const auto& [key, value] : table) set_section(config, key, value, name, seen);
}

}  // namespace orthant
