// The single table of the run file's keys. Parsing, range checks, help, --print-config and the reference page are made
// from it. A key's type and default are those of its member of Config. Internal to config/ and advice/.
#pragma once

#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "config/config.h"

namespace orthant {

/// Pointer to the member of a Config that holds a key's value.
using Field = std::variant<bool*, int64_t*, double*, std::string*, std::vector<std::string>*, std::vector<int64_t>*,
                           std::vector<double>*, std::array<int64_t, 3>*, HeldOut*>;

/// The legal values of a key: a range for numbers (and each element of a list of numbers), choices for strings.
struct Legal {
  double least = -std::numeric_limits<double>::infinity();
  double most = std::numeric_limits<double>::infinity();
  bool above_least = false;  // the range excludes `least`
  bool below_most = false;   // the range excludes `most`
  bool or_minus_one = false;
  std::vector<std::string> choices = {};
  bool is_path = false;                         // a string that names a file or folder, or a list of such strings
  bool (*accepts)(std::string_view) = nullptr;  // accepts further strings in addition to the choices
  std::vector<std::string> accepts_texts = {};  // patterns of these strings, for help and messages
};

/// How config.json of a Hugging Face directory states a key of the model: under a spelling of its own, through the
/// model's family (hf_family.h), or not at all. A dot in the spelling separates an object and its member.
struct HuggingFaceKey {
  std::string_view spelling = {};
  bool only_if_set = false;  // written only if the value is not the default, because Llama's file does not have it
  bool by_family = false;

  bool is_stated() const { return !spelling.empty() || by_family; }
};

struct Key {
  std::string_view section;
  std::string_view name;
  Field (*field)(Config&);
  HuggingFaceKey hugging_face;
  bool must_match_on_resume;  // a key of the model that must have the checkpoint's value in a resumed run
  Legal legal;
  std::string_view unit;  // empty if the value has none
  std::string_view help;  // one line without a period
  std::string_view short_help = {};    // line of the short help; empty if the key is not among the most used ones
  std::string_view default_text = {};  // describes a default that depends on something else; empty: as in Config

  std::string full_name() const { return std::string(section) + "." + std::string(name); }
};

/// Returns all keys, section by section.
std::span<const Key> config_table();
/// Returns the keys of the section [model], which describe the Architecture and the training objective.
std::vector<const Key*> model_keys();
/// Describes the purpose of a section in a few words; empty for an unknown section.
std::string_view section_help(std::string_view section);
/// Returns the names of the sections in the order of the table.
std::vector<std::string> config_sections();
/// Returns the key "section.name" ('-' counts as '_'), or nullptr if there is none.
const Key* find_key(std::string_view full_name);
/// Returns "did you mean training.steps?", or a list of the existing keys or sections if no name is near.
std::string suggest_key(std::string_view section, std::string_view name);
std::string suggest_section(std::string_view section);
/// Replaces '-' by '_', the form in which keys are compared.
std::string normal_key(std::string_view text);

/// Returns the type of a key for people, such as "int", "list of strings" or "list of 3 ints".
std::string type_name(const Key& key);
/// Returns the legal values as text: "at least 1", "0 to 3", "byte, FILE.model or train:N"; empty if all are legal.
std::string legal_text(const Key& key);
/// Returns the help with default, unit and legal values: "weight decay (default 0.1; at least 0)".
std::string full_help(const Key& key);
/// Returns the key's value, written as in TOML.
std::string value_text(const Key& key, const Config& config);
/// Returns the key and its value as a word of a command line: "parallelism.tensor_parallel_mesh=2,2,1". Items of a list
/// that contain commas are not read back as they were.
std::string setting_word(const Key& key, const Config& config);
/// Returns the default as help and the reference page show it.
std::string default_text(const Key& key);
/// Sets the key from the text of a command-line value. Returns the problem if the text has the wrong type.
std::optional<std::string> set_from_word(const Key& key, Config& config, std::string_view word);
/// Sets data.validation from an inline table of TOML, such as {code = ["a.py"]}. Returns the problem, if there is one.
std::optional<std::string> set_held_out_from_table(HeldOut& value, std::string_view text);
inline constexpr const char* kHeldOutLaw = "must be a number, a list of files, or a table of such lists";
/// Sets the key in `to` to its value in `from`.
void copy_value(const Key& key, const Config& from, Config& to);
/// Returns the problem with the key's present value and the legal values, or nullopt if the value is legal.
std::optional<std::string> illegal(const Key& key, Config& config);
/// Quotes text as a TOML basic string.
std::string toml_quoted(std::string_view text);
/// Sets keys whose defaults follow from other keys or from the run file's name, if the user has not set them. Also
/// shortens the file's warm-up if the command line asks for fewer steps. Records each change in the key's origin.
void derive_defaults(Config& config, const std::string& run_file);
/// Sets the keys given in the TOML text. Throws ConfigError as parse_config() does.
void apply_toml(Config& config, std::string_view text, const std::string& name);
/// Sets the keys given by the overrides. Throws ConfigError as parse_config() does.
void apply_overrides(Config& config, std::span<const std::string> overrides);

}  // namespace orthant
