// Prints a Config as TOML, and the table of keys as help and as the reference page.
#include <algorithm>

#include "base/errors.h"
#include "base/text.h"
#include "config/table.h"

namespace orthant {
namespace {

// Replaces control characters. A file name may contain any, but a TOML comment is one line of text.
std::string comment_text(std::string_view text) {
  std::string out(text);
  for (char& letter : out) {
    if (static_cast<unsigned char>(letter) < 0x20 || letter == 0x7F) letter = '?';
  }
  return out;
}

std::vector<const Key*> keys_of(std::string_view section) {
  std::vector<const Key*> keys;
  for (const Key& key : config_table()) {
    if (key.section == section) keys.push_back(&key);
  }
  return keys;
}

// Returns default, unit and legal values of a key: "default 300 steps; at least 1".
std::string facts(const Key& key) {
  std::string text = "default " + default_text(key);
  if (!key.unit.empty()) text += " " + std::string(key.unit);
  if (const std::string legal = legal_text(key); !legal.empty()) text += "; " + legal;
  return text;
}

// Wraps text into lines of at most `width` columns. The first line begins with `first`, the others with `indent`
// spaces.
std::string wrapped(std::string first, std::string_view text, size_t indent, size_t width) {
  std::string out, line = std::move(first);
  for (const std::string& word : split(text, ' ')) {
    if (line.size() > indent && line.size() + 1 + word.size() > width) {
      out += line + "\n";
      line = std::string(indent, ' ') + word;
    } else {
      line += (line.empty() || line.back() == ' ' ? "" : " ") + word;
    }
  }
  return out + line + "\n";
}

}  // namespace

std::string full_help(const Key& key) { return fmt::format("{} ({})", key.help, facts(key)); }

std::string default_text(const Key& key) {
  static const Config defaults;
  return key.default_text.empty() ? value_text(key, defaults) : std::string(key.default_text);
}

std::string print_config(const Config& config) {
  std::string out;
  for (const std::string& section : config_sections()) {
    const auto keys = keys_of(section);
    std::vector<std::string> lines;
    size_t width = 0;
    for (const Key* key : keys) {
      lines.push_back(fmt::format("{} = {}", key->name, value_text(*key, config)));
      width = std::max(width, std::min<size_t>(lines.back().size(), 60));
    }
    out += fmt::format("{}[{}]\n", out.empty() ? "" : "\n", section);
    for (size_t i = 0; i < keys.size(); ++i) {
      const auto origin = config.origins.find(keys[i]->full_name());
      const std::string source = origin == config.origins.end() ? "default" : comment_text(origin->second);
      out += fmt::format("{:<{}}  # {}\n", lines[i], width, source);
    }
  }
  return out;
}

std::string config_help() {
  constexpr size_t kWidth = 100, kIndent = 6;
  std::string out;
  for (const std::string& section : config_sections()) {
    out += "\n" + wrapped(fmt::format("[{}]", section), section_help(section), 2, kWidth);
    for (const Key* key : keys_of(section)) {
      out += fmt::format("  --{} {}\n", key->full_name(), type_name(*key));
      out += wrapped(std::string(kIndent, ' '), full_help(*key), kIndent, kWidth);
    }
  }
  return out;
}

std::string config_short_help() {
  std::string out;
  for (const Key& key : config_table()) {
    if (!key.short_help.empty()) out += fmt::format("  --{:<38}{}\n", key.full_name(), key.short_help);
  }
  return out;
}

std::string config_reference() {
  std::string out =
      "# The run file\n\n"
      "A run file is TOML. Every key has a default, so a run file holds only what differs. Any key can also be set on\n"
      "the command line, which beats the file: `orthant train run.toml --training.steps 20 run.ranks=2`; `-` and `_`\n"
      "are the same in keys, lists are written `a,b`, and `--metrics.no-enable-tensorboard` turns a flag off. A table\n"
      "as the value, such as that of `data.validation`, can only be in the file.\n"
      "`--print-config` shows the effective values and where each came from. Unknown keys are errors.\n\n"
      "This page is printed by `orthant reference`; the table it is made from is `src/config/table.cc`.\n";
  for (const std::string& section : config_sections()) {
    out += fmt::format("\n## [{}]\n\n{}\n\n| key | type | default | unit | legal values | what it is |\n", section,
                       section_help(section));
    out += "|---|---|---|---|---|---|\n";
    for (const Key* key : keys_of(section)) {
      out += fmt::format("| `{}` | {} | `{}` | {} | {} | {} |\n", key->name, type_name(*key),
                         default_text(*key), key->unit, legal_text(*key), key->help);
    }
  }
  return out;
}

}  // namespace orthant
