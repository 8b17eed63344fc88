// The one table of the run file's keys: parsing, range checks, help, --print-config and the reference page are made
// from it. A key's type and default are those of its member of Config. Internal to src/plan.
#pragma once

#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "plan/config.h"

namespace orthant {

/// Where a key's value lives in a Config.
using Field = std::variant<bool*, int64_t*, double*, std::string*, std::vector<std::string>*, std::vector<int64_t>*,
                           std::array<int64_t, 3>*, HeldOut*>;

/// Which values a key takes: a range for numbers (and for each element of a list of numbers), choices for words.
struct Legal {
  double least = -std::numeric_limits<double>::infinity();
  double most = std::numeric_limits<double>::infinity();
  bool above_least = false;  // least itself is excluded
  bool below_most = false;   // most itself is excluded
  bool or_minus_one = false;
  std::vector<std::string> choices = {};
  bool (*accepts)(std::string_view) = nullptr;  // further words beside the choices ...
  std::vector<std::string> accepts_texts = {};  // ... and what they look like
};

struct Key {
  std::string_view section;
  std::string_view name;
  Field (*field)(Config&);
  Legal legal;
  std::string_view unit;  // empty: none
  std::string_view help;  // one line, no period
  std::string_view short_help = {};    // one line for --help; empty if the key is not among the most used
  std::string_view default_text = {};  // for a default that is computed; empty: the value in Config

  std::string full_name() const { return std::string(section) + "." + std::string(name); }
};

/// All keys, section by section.
std::span<const Key> config_table();
/// What a section is for, in a few words.
std::string_view section_help(std::string_view section);
/// The sections in the order of the table.
std::vector<std::string> config_sections();
/// The key "section.name" ('-' counts as '_'), or nullptr.
const Key* find_key(std::string_view full_name);
/// "did you mean training.steps?", or, with nothing near, what there is.
std::string suggest_key(std::string_view section, std::string_view name);
std::string suggest_section(std::string_view section);
/// '-' to '_', the form in which keys are compared.
std::string normal_key(std::string_view text);

/// "int", "float", "bool", "string", "list of strings", "list of 3 ints", "float or list of strings".
std::string type_name(const Key& key);
/// "at least 1", "0 to 3", "byte, FILE.model or train:N"; empty when everything is legal.
std::string legal_text(const Key& key);
/// The value as TOML writes it.
std::string value_text(const Key& key, const Config& config);
/// The default as help and the reference page show it.
std::string default_text(const Key& key);
/// Sets the key from a word of the command line. Returns what is wrong with it, or nothing.
std::optional<std::string> set_from_word(const Key& key, Config& config, std::string_view word);
/// What is wrong with the key's value as it stands, with the nearest legal value; or nothing.
std::optional<std::string> illegal(const Key& key, Config& config);
/// Text as a TOML basic string.
std::string toml_quoted(std::string_view text);
/// Sets the keys that follow from other keys or from the name of the run file, unless the user has set them. Their
/// origins record this.
void derive_defaults(Config& config, const std::string& run_file);
/// Sets what the TOML text says. Throws ConfigError as parse_config does.
void apply_toml(Config& config, std::string_view text, const std::string& name);
/// Sets what the overrides say. Throws ConfigError as parse_config does.
void apply_overrides(Config& config, std::span<const std::string> overrides);

}  // namespace orthant
