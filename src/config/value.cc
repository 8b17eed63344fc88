// Reads, checks and prints the value of a single key, whatever its type.
#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>

#include "base/errors.h"
#include "base/text.h"
#include "config/table.h"

namespace orthant {
namespace {

template <typename... Cases>
struct Overloaded : Cases... {
  using Cases::operator()...;
};
template <typename... Functions>
Overloaded(Functions...) -> Overloaded<Functions...>;  // clang needs this guide before version 17

Field field_of(const Key& key, const Config& config) { return key.field(const_cast<Config&>(config)); }

std::string float_text(double value) {
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".en") == std::string::npos) text += ".0";
  return text;
}

template <typename Items, typename Print>
std::string list_text(const Items& items, Print print) {
  std::vector<std::string> words;
  for (const auto& item : items) words.push_back(print(item));
  return "[" + join(words, ", ") + "]";
}

std::optional<double> to_float(std::string_view word) {
  double value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error != std::errc() || end != word.data() + word.size()) return {};
  return value;
}

std::optional<int64_t> to_int(std::string_view word) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error != std::errc() || end != word.data() + word.size()) return {};
  return value;
}

// Splits a list written as "a,b", "[a, b]" or "['a', \"b\"]".
std::vector<std::string> to_list(std::string_view word) {
  word = trim(word);
  if (word.starts_with('[') && word.ends_with(']')) word = trim(word.substr(1, word.size() - 2));
  std::vector<std::string> items;
  if (word.empty()) return items;
  for (const std::string& part : split(word, ',')) {
    std::string_view item = trim(part);
    const bool is_quoted = item.size() >= 2 && (item[0] == '"' || item[0] == '\'') && item.back() == item[0];
    items.emplace_back(is_quoted ? item.substr(1, item.size() - 2) : item);
  }
  return items;
}

bool is_utf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const size_t length = byte < 0x80                   ? 1
                          : byte >= 0xC2 && byte < 0xE0 ? 2
                          : byte >= 0xE0 && byte < 0xF0 ? 3
                          : byte >= 0xF0 && byte < 0xF5 ? 4
                                                        : 0;
    if (length == 0 || i + length > text.size()) return false;
    for (size_t k = 1; k < length; ++k) {
      if ((static_cast<unsigned char>(text[i + k]) & 0xC0) != 0x80) return false;
    }
    // TOML readers refuse overlong forms, surrogates and code points beyond U+10FFFF.
    const auto second = length > 1 ? static_cast<unsigned char>(text[i + 1]) : 0;
    if ((byte == 0xE0 && second < 0xA0) || (byte == 0xED && second > 0x9F) || (byte == 0xF0 && second < 0x90) ||
        (byte == 0xF4 && second > 0x8F)) {
      return false;
    }
    i += length;
  }
  return true;
}

std::string number_text(double bound) {
  return bound == std::floor(bound) && std::abs(bound) < 1e15 ? fmt::format("{:.0f}", bound) : fmt::format("{}", bound);
}

std::string range_text(const Legal& legal) {
  const bool has_most = std::isfinite(legal.most);
  if (!std::isfinite(legal.least)) return "";
  std::string text;
  if (!has_most) {
    text = (legal.above_least ? "above " : "at least ") + number_text(legal.least);
  } else if (legal.below_most) {
    text = "at least " + number_text(legal.least) + " and below " + number_text(legal.most);
  } else {
    text = (legal.above_least ? "above " : "") + number_text(legal.least) + " to " + number_text(legal.most);
  }
  return legal.or_minus_one ? text + ", or -1" : text;
}

std::vector<std::string> choice_words(const Legal& legal, bool in_quotes) {
  std::vector<std::string> words;
  for (const auto& choice : legal.choices) words.push_back(in_quotes ? toml_quoted(choice) : choice);
  words.insert(words.end(), legal.accepts_texts.begin(), legal.accepts_texts.end());
  return words;
}

std::optional<std::string> number_problem(const Legal& legal, double value) {
  if (std::isnan(value)) return "is not a number";
  if (std::isinf(value)) return "is not finite";
  if (legal.or_minus_one && value == -1) return {};
  const bool too_small = value < legal.least || (legal.above_least && value == legal.least);
  const bool too_large = value > legal.most || (legal.below_most && value == legal.most);
  if (!too_small && !too_large) return {};
  return "must be " + range_text(legal);
}

std::optional<std::string> word_problem(const Legal& legal, const std::string& value) {
  if (!is_utf8(value)) return "must be UTF-8 text";
  if (value.find('\0') != std::string::npos) return "must not contain a NUL character";
  if (legal.choices.empty() || (legal.accepts != nullptr && legal.accepts(value))) return {};
  for (const auto& choice : legal.choices) {
    if (choice == value) return {};
  }
  std::string text = "must be " + join_or(choice_words(legal, true));
  // If two choices are equally near, or a third of the letters differ, as in "gpu" and "cpu", a suggestion would be a
  // guess.
  if (const auto choice = nearest(value, legal.choices)) {
    const int edits = edit_distance(value, *choice);
    const auto as_near = [&](const auto& other) { return edit_distance(value, other) == edits; };
    const bool is_near = 3 * static_cast<size_t>(edits) < std::max(value.size(), choice->size());
    if (is_near && std::ranges::count_if(legal.choices, as_near) == 1)
      text += "; did you mean " + toml_quoted(*choice) + "?";
  }
  return text;
}

template <typename Items, typename Check>
std::optional<std::string> first_problem(const Items& items, Check check) {
  for (const auto& item : items) {
    if (auto problem = check(item)) return problem;
  }
  return {};
}

// A list of files, or a table with a list for each name.
std::string held_out_text(const HeldOut& value) {
  if (value.sets.empty()) return float_text(value.fraction);
  if (value.sets[0].name.empty()) return list_text(value.sets[0].files, toml_quoted);
  std::vector<std::string> sets;
  for (const NamedFiles& set : value.sets) {
    sets.push_back(toml_quoted(set.name) + " = " + list_text(set.files, toml_quoted));
  }
  return "{" + join(sets, ", ") + "}";
}

}  // namespace

std::string toml_quoted(std::string_view text) {
  std::string out = "\"";
  for (const char letter : text) {
    const auto code = static_cast<unsigned char>(letter);
    if (letter == '"' || letter == '\\') {
      out += '\\';
      out += letter;
    } else if (letter == '\n') {
      out += "\\n";
    } else if (letter == '\t') {
      out += "\\t";
    } else if (code < 0x20 || code == 0x7F) {
      out += fmt::format("\\u{:04X}", code);
    } else {
      out += letter;
    }
  }
  return out + "\"";
}

std::string type_name(const Key& key) {
  const Config config;
  return std::visit(Overloaded{
                        [](bool*) { return "bool"; },
                        [](int64_t*) { return "int"; },
                        [](double*) { return "float"; },
                        [](std::string*) { return "string"; },
                        [](std::vector<std::string>*) { return "list of strings"; },
                        [](std::vector<int64_t>*) { return "list of ints"; },
                        [](std::vector<double>*) { return "list of floats"; },
                        [](std::array<int64_t, 3>*) { return "list of 3 ints"; },
                        [](HeldOut*) { return "float, list of strings, or table of lists"; },
                    },
                    field_of(key, config));
}

std::string legal_text(const Key& key) {
  if (!key.legal.choices.empty()) return join_or(choice_words(key.legal, false));
  return range_text(key.legal);
}

void copy_value(const Key& key, const Config& from, Config& to) {
  const Field source = key.field(const_cast<Config&>(from)), target = key.field(to);
  std::visit([&](auto* value) { *std::get<decltype(value)>(target) = *value; }, source);
}

std::string value_text(const Key& key, const Config& config) {
  const auto int_text = [](int64_t value) { return fmt::format("{}", value); };
  return std::visit(Overloaded{
                        [](bool* value) -> std::string { return *value ? "true" : "false"; },
                        [&](int64_t* value) { return int_text(*value); },
                        [](double* value) { return float_text(*value); },
                        [](std::string* value) { return toml_quoted(*value); },
                        [](std::vector<std::string>* value) { return list_text(*value, toml_quoted); },
                        [&](std::vector<int64_t>* value) { return list_text(*value, int_text); },
                        [](std::vector<double>* value) { return list_text(*value, float_text); },
                        [&](std::array<int64_t, 3>* value) { return list_text(*value, int_text); },
                        [](HeldOut* value) { return held_out_text(*value); },
                    },
                    field_of(key, config));
}

std::string setting_word(const Key& key, const Config& config) {
  const Field field = field_of(key, config);
  std::string value = value_text(key, config);
  if (const auto* text = std::get_if<std::string*>(&field)) value = **text;
  if (const auto* list = std::get_if<std::vector<std::string>*>(&field)) value = join(**list, ",");
  const bool is_numbers = std::holds_alternative<std::vector<int64_t>*>(field) ||
                          std::holds_alternative<std::vector<double>*>(field) ||
                          std::holds_alternative<std::array<int64_t, 3>*>(field);
  if (is_numbers) std::erase_if(value, [](char c) { return c == '[' || c == ']' || c == ' '; });
  return key.full_name() + "=" + value;
}

std::optional<std::string> set_from_word(const Key& key, Config& config, std::string_view word) {
  using Problem = std::optional<std::string>;
  return std::visit(Overloaded{
                        [&](bool* value) -> Problem {
                          const bool yes = word == "true" || word == "1" || word == "yes" || word == "on";
                          const bool no = word == "false" || word == "0" || word == "no" || word == "off";
                          if (!yes && !no) return "must be true or false";
                          *value = yes;
                          return {};
                        },
                        [&](int64_t* value) -> Problem {
                          const auto number = to_int(word);
                          const bool all_digits =
                              !word.empty() && word.find_first_not_of("0123456789", word[0] == '-') == word.npos;
                          if (!number) return all_digits ? "must fit 64 bits" : "must be a whole number";
                          *value = *number;
                          return {};
                        },
                        [&](double* value) -> Problem {
                          const auto number = to_float(word);
                          if (!number) return "must be a number";
                          *value = *number;
                          return {};
                        },
                        [&](std::string* value) -> Problem {
                          const bool is_quoted = word.size() >= 2 && word.front() == '"' && word.back() == '"';
                          const bool is_choice = is_quoted && !key.legal.choices.empty();  // as a run file has it
                          *value = is_choice ? word.substr(1, word.size() - 2) : word;
                          return {};
                        },
                        [&](std::vector<std::string>* value) -> Problem {
                          *value = to_list(word);
                          return {};
                        },
                        [&](std::vector<int64_t>* value) -> Problem {
                          value->clear();
                          for (const std::string& item : to_list(word)) {
                            const auto number = to_int(item);
                            if (!number) return "must be whole numbers, as in 3,4,3";
                            value->push_back(*number);
                          }
                          return {};
                        },
                        [&](std::vector<double>* value) -> Problem {
                          value->clear();
                          for (const std::string& item : to_list(word)) {
                            const auto number = to_float(item);
                            if (!number) return "must be numbers, as in 0.7,0.3";
                            value->push_back(*number);
                          }
                          return {};
                        },
                        [&](std::array<int64_t, 3>* value) -> Problem {
                          const auto items = to_list(word);
                          if (items.size() != 3) return "must be 3 whole numbers, as in 2,2,1";
                          for (size_t i = 0; i < 3; ++i) {
                            const auto number = to_int(items[i]);
                            if (!number) return "must be 3 whole numbers, as in 2,2,1";
                            (*value)[i] = *number;
                          }
                          return {};
                        },
                        [&](HeldOut* value) -> Problem {
                          if (const auto fraction = to_float(word)) {
                            *value = {*fraction, {}};
                            return {};
                          }
                          if (trim(word).starts_with('{')) return set_held_out_from_table(*value, word);
                          *value = {0.0, {{.name = "", .files = to_list(word)}}};
                          if (value->sets[0].files.empty()) return kHeldOutLaw;
                          return {};
                        },
                    },
                    key.field(config));
}

std::optional<std::string> illegal(const Key& key, Config& config) {
  using Problem = std::optional<std::string>;
  const auto number = [&](auto value) { return number_problem(key.legal, static_cast<double>(value)); };
  const auto word = [&](const std::string& value) { return word_problem(key.legal, value); };
  return std::visit(Overloaded{
                        [](bool*) -> Problem { return {}; },
                        [&](int64_t* value) { return number(*value); },
                        [&](double* value) { return number(*value); },
                        [&](std::string* value) { return word(*value); },
                        [&](std::vector<std::string>* value) { return first_problem(*value, word); },
                        [&](std::vector<int64_t>* value) { return first_problem(*value, number); },
                        [&](std::vector<double>* value) { return first_problem(*value, number); },
                        [&](std::array<int64_t, 3>* value) { return first_problem(*value, number); },
                        [&](HeldOut* value) -> Problem {
                          if (auto problem = number(value->fraction)) return problem;
                          for (const NamedFiles& set : value->sets) {
                            if (!is_set_name(set.name)) {
                              return "must name its sets with letters, digits, '-', '_' and '.'";
                            }
                            if (auto problem = first_problem(set.files, word)) return problem;
                          }
                          return {};
                        },
                    },
                    key.field(config));
}

}  // namespace orthant
