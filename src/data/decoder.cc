#include "data/decoder.h"

#include <cstdint>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/errors.h"
#include "data/growth_limit.h"
#include "data/json_fields.h"

namespace orthant {

using Json = nlohmann::json;

Decoder::Decoder(const Json& json, const std::string& source) : source_(source) {
  if (!json.is_null()) add(json);
  require_few_steps(replacements_.size(), "decoder", source_);
}

void Decoder::add(const Json& json) {
  const std::string type = text_or(json, "type", "", source_);
  if (type == "Sequence") {
    for (const Json& step : member(json, "decoders", source_)) add(step);
  } else if (type == "ByteFallback") {
    reads_bytes_ = true;
  } else if (type == "Replace") {
    const std::string from = text_or(member(json, "pattern", source_), "String", "", source_);
    if (from.empty()) throw DataError(source_ + ": a decoder's Replace must have a pattern {\"String\": \"...\"}");
    replacements_.emplace_back(from, text_or(json, "content", "", source_));
  } else if (type == "Metaspace") {
    const std::string mark = text_or(json, "replacement", "\u2581", source_);
    if (mark.empty()) throw DataError(source_ + ": the replacement of Metaspace must not be empty");
    replacements_.emplace_back(mark, " ");
    const bool prefix = bool_or(json, "add_prefix_space", true, source_);
    drops_first_space_ |= text_or(json, "prepend_scheme", prefix ? "always" : "never", source_) != "never";
  } else if (type == "Strip" && text_or(json, "content", "", source_) == " ") {
    drops_first_space_ = true;
  } else if (type != "ByteLevel" && type != "Fuse") {
    throw DataError(fmt::format(
        "{}: the decoder \"{}\" is not supported; Orthant reads Sequence, ByteLevel, ByteFallback, Replace, "
        "Metaspace, Strip of a space and Fuse",
        source_, type));
  }
}

std::string Decoder::surface(std::string text) const {
  uint32_t byte = 0;
  if (reads_bytes_ && text.size() == 6 && text.back() == '>' && std::sscanf(text.c_str(), "<0x%2X>", &byte) == 1) {
    return std::string(1, static_cast<char>(byte));
  }
  const GrowthLimit limit(text.size(), "decoder", source_);
  for (const auto& [from, to] : replacements_) {
    size_t end = 0;  // of the text that is replaced so far
    std::string replaced;
    for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, end)) {
      replaced.append(text, end, at - end) += to;
      limit.require(replaced.size());
      end = at + from.size();
    }
    if (end > 0) text = replaced.append(text, end);
  }
  return text;
}

}  // namespace orthant
