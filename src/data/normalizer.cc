#include "data/normalizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
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

struct Form {
  bool composes = false, is_compatible = false;
};

// A form of a valid text. Unlike utf8proc_map(), it takes linear time for many combining marks.
std::string compose(std::string_view text, Form form) {
  const auto options =
      static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | (form.is_compatible ? UTF8PROC_COMPAT : 0));
  std::vector<utf8proc_int32_t> codes;
  for (size_t at = 0, length = 0; at < text.size(); at += length) {
    length = utf8_length(text.substr(at));
    std::array<utf8proc_int32_t, 32> parts;  // no character has more than 18
    const auto code = static_cast<utf8proc_int32_t>(code_point(text.substr(at, length)));
    const utf8proc_ssize_t count = utf8proc_decompose_char(code, parts.data(), parts.size(), options, nullptr);
    ORTHANT_CHECK(count >= 0 && count <= std::ssize(parts), code);
    codes.insert(codes.end(), parts.begin(), parts.begin() + count);
  }
  const auto combining_class = [](utf8proc_int32_t code) { return utf8proc_get_property(code)->combining_class; };
  for (auto begin = codes.begin(); begin != codes.end();) {
    const auto mark = std::find_if(begin, codes.end(), [&](auto code) { return combining_class(code) != 0; });
    begin = std::find_if(mark, codes.end(), [&](auto code) { return combining_class(code) == 0; });
    std::stable_sort(mark, begin, [&](auto a, auto b) { return combining_class(a) < combining_class(b); });
  }
  if (form.composes) {
    const auto how = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    codes.resize(static_cast<size_t>(utf8proc_normalize_utf32(codes.data(), std::ssize(codes), how)));
  }
  std::string result;
  for (const utf8proc_int32_t code : codes) {
    std::array<utf8proc_uint8_t, 4> bytes;
    result.append(reinterpret_cast<const char*>(bytes.data()),
                  static_cast<size_t>(utf8proc_encode_char(code, bytes.data())));
  }
  return result;
}

// Applies the form to every part of valid UTF-8 between characters that stay as they are. ASCII is the same in all
// forms.
std::string compose_valid_parts(std::string text, Form form) {
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

std::string replace_all(const std::string& text, const Pattern& pattern, const std::string& by,
                        const GrowthLimit& limit) {
  std::string result;
  size_t end = 0;
  for (const TextRange& match : pattern.find_all(text)) {
    result.append(text, end, match.begin - end) += by;
    limit.require(result.size());
    end = match.end;
  }
  return result.append(text, end);
}

std::string strip(const std::string& text, bool left, bool right) {
  static const Pattern spaces("\\A\\s+|\\s+\\z", "strip");
  size_t begin = 0, end = text.size();
  for (const TextRange& match : spaces.find_all(text)) {
    if (left && match.begin == 0) begin = match.end;
    if (right && match.end == text.size()) end = std::max(begin, match.begin);
  }
  return text.substr(begin, end - begin);
}

}  // namespace

Normalizer::Normalizer(const Json& json, const std::string& source) : source_(source) {
  if (!json.is_null()) add(json, source);
  require_few_steps(steps_.size(), "normalizer", source_);
}

void Normalizer::add(const Json& json, const std::string& source) {
  const std::string type = text_or(json, "type", "", source);
  static const std::vector<std::pair<std::string, Form>> kForms = {{"NFC", {.composes = true}},
                                                                   {"NFD", {}},
                                                                   {"NFKC", {.composes = true, .is_compatible = true}},
                                                                   {"NFKD", {.is_compatible = true}}};
  const auto form = std::ranges::find(kForms, type, &std::pair<std::string, Form>::first);
  if (form != kForms.end()) {
    steps_.emplace_back([how = form->second](std::string text, const GrowthLimit&) {
      return compose_valid_parts(std::move(text), how);
    });
  } else if (type == "Sequence") {
    const Json& steps = member(json, "normalizers", source);
    for (const Json& step : steps) add(step, source);
  } else if (type == "Replace") {
    steps_.emplace_back(
        [pattern = pattern_member(json, source), by = text_or(json, "content", "", source)](
            const std::string& text, const GrowthLimit& limit) { return replace_all(text, pattern, by, limit); });
  } else if (type == "Prepend") {
    steps_.emplace_back([before = text_or(json, "prepend", "", source)](std::string text, const GrowthLimit&) {
      return text.empty() ? text : before + text;
    });
  } else if (type == "Strip") {
    const bool left = bool_or(json, "strip_left", true, source), right = bool_or(json, "strip_right", true, source);
    steps_.emplace_back([=](const std::string& text, const GrowthLimit&) { return strip(text, left, right); });
  } else if (type == "Precompiled") {
    const std::optional<std::string> bytes = decode_base64(text_or(json, "precompiled_charsmap", "", source));
    if (!bytes) throw DataError(fmt::format("{}: precompiled_charsmap is not base64", source));
    if (bytes->empty()) return;
    steps_.emplace_back([table = std::make_shared<ReplacementTable>(*bytes, source)](
                            const std::string& text, const GrowthLimit& limit) { return table->replace(text, limit); });
  } else {
    throw DataError(fmt::format(
        "{}: the normalizer \"{}\" is not supported; Orthant reads Sequence, NFC, NFD, NFKC, NFKD, Replace, "
        "Prepend, Strip and Precompiled",
        source, type));
  }
}

std::string Normalizer::apply(std::string_view text) const {
  const GrowthLimit limit(text.size(), "normalizer", source_);
  std::string result(text);
  for (const Step& step : steps_) {
    result = step(std::move(result), limit);
    limit.require(result.size());
  }
  return result;
}

}  // namespace orthant
