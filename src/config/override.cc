// Finds the overrides in a command line and applies them to a Config.
#include <algorithm>

#include "base/errors.h"
#include "config/table.h"

namespace orthant {
namespace {

struct Override {
  std::string section, name;
  bool off = false;  // --section.no-flag
  std::optional<std::string> value;
  size_t elements = 1;  // elements of the command line; 2 if the value is an element of its own
};

bool is_key_text(std::string_view text) {
  const auto is_letter = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-'; };
  const size_t dot = text.find('.');
  return dot != std::string_view::npos && dot > 0 && dot + 1 < text.size() && text[0] != '-' &&
         std::ranges::all_of(text.substr(0, dot), is_letter) && std::ranges::all_of(text.substr(dot + 1), is_letter);
}

bool is_bool(const Key& key) {
  Config config;
  return std::holds_alternative<bool*>(key.field(config));
}

bool is_bool_word(std::string_view word) {
  return word == "true" || word == "false" || word == "yes" || word == "no" || word == "on" || word == "off" ||
         word == "1" || word == "0";
}

// Recognizes --section.no-flag and --no-section.flag if section.flag is a boolean key, and removes the "no".
bool strip_no(Override& found) {
  for (std::string* part : {&found.name, &found.section}) {
    if (!part->starts_with("no_")) continue;
    Override shorter = found;
    (part == &found.name ? shorter.name : shorter.section) = part->substr(3);
    const Key* key = find_key(shorter.section + "." + shorter.name);
    if (key == nullptr || !is_bool(*key)) continue;
    found = shorter;
    found.off = true;
    return true;
  }
  return false;
}

// Returns the override that begins at arguments[i], or nullopt.
std::optional<Override> read_override(std::span<const std::string> arguments, size_t i) {
  std::string_view text = arguments[i];
  const bool dashed = text.starts_with("--");
  if (dashed) text.remove_prefix(2);
  const size_t equals = text.find('=');
  const std::string_view key_text = text.substr(0, equals);
  if (!is_key_text(key_text) || (!dashed && equals == std::string_view::npos)) return {};

  const size_t dot = key_text.find('.');
  Override found{.section = normal_key(key_text.substr(0, dot)), .name = normal_key(key_text.substr(dot + 1))};
  if (equals != std::string_view::npos) {
    found.value = std::string(text.substr(equals + 1));
    return found;
  }
  const Key* key = find_key(found.section + "." + found.name);
  if (key == nullptr && strip_no(found)) return found;
  const std::string* next = i + 1 < arguments.size() ? &arguments[i + 1] : nullptr;
  const bool takes_next =
      next != nullptr && (key != nullptr && is_bool(*key) ? is_bool_word(*next) : !next->starts_with("--"));
  if (takes_next) {
    found.value = *next;
    found.elements = 2;
  }
  return found;
}

void apply(Config& config, const Override& found) {
  const std::string name = found.section + "." + found.name;
  const Key* key = find_key(name);
  if (key == nullptr) {
    throw ConfigError(fmt::format("unknown key {} (command line); {}", name, suggest_key(found.section, found.name)));
  }
  std::string value = found.value.value_or("");
  if (!found.value) {
    if (!is_bool(*key)) throw ConfigError(fmt::format("{} (command line) needs a value: --{} VALUE", name, name));
    value = found.off ? "false" : "true";
  }
  std::optional<std::string> problem = set_from_word(*key, config, value);
  if (!problem) problem = illegal(*key, config);
  if (problem) throw ConfigError(fmt::format("{} = {} (command line) {}", name, value, *problem));
  config.origins[name] = "command line";
}

}  // namespace

std::vector<std::string> take_overrides(std::vector<std::string>& arguments) {
  std::vector<std::string> taken, left;
  for (size_t i = 0; i < arguments.size();) {
    const auto found = read_override(arguments, i);
    const size_t elements = found ? found->elements : 1;
    auto& target = found ? taken : left;
    target.insert(target.end(), arguments.begin() + static_cast<std::ptrdiff_t>(i),
                  arguments.begin() + static_cast<std::ptrdiff_t>(i + elements));
    i += elements;
  }
  arguments = left;
  return taken;
}

void apply_overrides(Config& config, std::span<const std::string> overrides) {
  for (size_t i = 0; i < overrides.size();) {
    const auto found = read_override(overrides, i);
    if (!found) {
      throw ConfigError(
          fmt::format("{} (command line) is no setting; settings look like training.steps=20", overrides[i]));
    }
    apply(config, *found);
    i += found->elements;
  }
}

}  // namespace orthant
