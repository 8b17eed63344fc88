#include "data/normalizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/errors.h"
#include "data/json_fields.h"
#include "data/newer_characters.h"
#include "data/pattern.h"
#include "data/replacement_table.h"
#include "data/utf8.h"

namespace orthant {
namespace {

using Json = nlohmann::json;

// Unicode's composed or decomposed form of a valid text.
std::string compose(std::string_view text, int form) {
  utf8proc_uint8_t* composed = nullptr;
  const utf8proc_ssize_t bytes =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()), static_cast<utf8proc_ssize_t>(text.size()),
                   &composed, static_cast<utf8proc_option_t>(UTF8PROC_STABLE | form));
  if (bytes < 0) throw DataError(fmt::format("a text cannot be normalized: {}", utf8proc_errmsg(bytes)));
  std::string result(reinterpret_cast<const char*>(composed), static_cast<size_t>(bytes));
  std::free(composed);
  return result;
}

// Applies the form to every part of valid UTF-8 between characters that stay as they are. ASCII is the same in all
// forms.
std::string compose_valid_parts(std::string text, int form) {
  if (std::ranges::all_of(text, [](char letter) { return static_cast<uint8_t>(letter) < 0x80; })) return text;
  std::string result;
  size_t begin = 0;
  for (size_t at = 0, length = 0; at <= text.size(); at += std::max<size_t>(length, 1)) {
    const std::string_view rest = std::string_view(text).substr(at);
    length = utf8_length(rest);
    if (length > 0 && range_of(kNotNormalized, code_point(rest.substr(0, length))) == nullptr) continue;
    if (at > begin) result += compose(std::string_view(text).substr(begin, at - begin), form);
    begin = std::min(text.size(), at + std::max<size_t>(length, 1));
    result.append(text, at, begin - at);
  }
  return result;
}

std::string replace_all(const std::string& text, const Pattern& pattern, const std::string& by) {
  std::string result;
  size_t end = 0;
  for (const TextRange& match : pattern.find_all(text)) {
    result.append(text, end, match.begin - end) += by;
    end = match.end;
  }
  return result.append(text, end);
}

std::string strip(const std::string& text, bool left, bool right) {
  static const Pattern spaces("^\\s+|\\s+$", "strip");
  size_t begin = 0, end = text.size();
  for (const TextRange& match : spaces.find_all(text)) {
    if (left && match.begin == 0) begin = match.end;
    if (right && match.end == text.size()) end = std::max(begin, match.begin);
  }
  return text.substr(begin, end - begin);
}

}  // namespace

Normalizer::Normalizer(const Json& json, const std::string& source) {
  if (!json.is_null()) add(json, source);
}

void Normalizer::add(const Json& json, const std::string& source) {
  const std::string type = text_or(json, "type", "", source);
  static const std::vector<std::pair<std::string, int>> kForms = {{"NFC", UTF8PROC_COMPOSE},
                                                                  {"NFD", UTF8PROC_DECOMPOSE},
                                                                  {"NFKC", UTF8PROC_COMPOSE | UTF8PROC_COMPAT},
                                                                  {"NFKD", UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT}};
  const auto form = std::ranges::find(kForms, type, &std::pair<std::string, int>::first);
  if (form != kForms.end()) {
    steps_.emplace_back([how = form->second](std::string text) { return compose_valid_parts(std::move(text), how); });
  } else if (type == "Sequence") {
    const Json& steps = member(json, "normalizers", source);
    for (const Json& step : steps) add(step, source);
  } else if (type == "Replace") {
    steps_.emplace_back([pattern = pattern_member(json, source), by = text_or(json, "content", "", source)](
                            const std::string& text) { return replace_all(text, pattern, by); });
  } else if (type == "Prepend") {
    steps_.emplace_back([before = text_or(json, "prepend", "", source)](std::string text) {
      return text.empty() ? text : before + text;
    });
  } else if (type == "Strip") {
    const bool left = bool_or(json, "strip_left", true, source), right = bool_or(json, "strip_right", true, source);
    steps_.emplace_back([=](const std::string& text) { return strip(text, left, right); });
  } else if (type == "Precompiled") {
    const std::optional<std::string> bytes = decode_base64(text_or(json, "precompiled_charsmap", "", source));
    if (!bytes) throw DataError(fmt::format("{}: precompiled_charsmap is not base64", source));
    if (bytes->empty()) return;
    steps_.emplace_back([table = std::make_shared<ReplacementTable>(*bytes, source)](const std::string& text) {
      return table->replace(text);
    });
  } else {
    throw DataError(fmt::format(
        "{}: the normalizer \"{}\" is not supported; Orthant reads Sequence, NFC, NFD, NFKC, NFKD, Replace, "
        "Prepend, Strip and Precompiled",
        source, type));
  }
}

std::string Normalizer::apply(std::string_view text) const {
  std::string result(text);
  for (const Step& step : steps_) result = step(std::move(result));
  return result;
}

}  // namespace orthant
