#include "data/pre_tokenizer.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/errors.h"
#include "data/json_fields.h"
#include "data/pattern.h"

namespace orthant {
namespace {

using Json = nlohmann::json;

// Matches of a pattern become pieces of their own, or parts of a neighbor, or are removed.
enum class Behavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

Behavior behavior_of(const std::string& name, const std::string& source) {
  static const std::vector<std::pair<std::string, Behavior>> kNames = {
      {"Removed", Behavior::kRemoved},
      {"Isolated", Behavior::kIsolated},
      {"MergedWithPrevious", Behavior::kMergedWithPrevious},
      {"MergedWithNext", Behavior::kMergedWithNext},
      {"Contiguous", Behavior::kContiguous}};
  for (const auto& [known, behavior] : kNames) {
    if (known == name) return behavior;
  }
  throw DataError(
      fmt::format("{}: behavior = \"{}\" must be Removed, Isolated, MergedWithPrevious, MergedWithNext or "
                  "Contiguous",
                  source, name));
}

struct MatchSpan {
  TextRange range;
  bool matches = false;
};

// The matches and the texts between them, in order. `invert` exchanges the two.
std::vector<MatchSpan> parts_of(std::string_view text, const Pattern& pattern, bool invert) {
  std::vector<MatchSpan> parts;
  size_t end = 0;
  for (const TextRange& match : pattern.find_all(text)) {
    if (match.begin > end) parts.push_back({{end, match.begin}, invert});
    parts.push_back({match, !invert});
    end = match.end;
  }
  if (end < text.size()) parts.push_back({{end, text.size()}, invert});
  return parts;
}

void append_parts(std::string_view text, const std::vector<MatchSpan>& parts, Behavior behavior,
                  std::vector<std::string_view>& pieces) {
  std::vector<TextRange> ranges;
  bool joins = false;  // the next part extends the last range
  const MatchSpan* before = nullptr;
  for (const MatchSpan& part : parts) {
    switch (behavior) {
      case Behavior::kRemoved:
        if (part.matches) continue;
        break;
      case Behavior::kIsolated:
        break;
      case Behavior::kMergedWithPrevious:
        joins = part.matches && before != nullptr && !before->matches;
        break;
      case Behavior::kMergedWithNext:
        joins = !part.matches && before != nullptr && before->matches;
        break;
      case Behavior::kContiguous:
        joins = before != nullptr && before->matches == part.matches;
        break;
    }
    if (joins) ranges.back().end = part.range.end;
    if (!joins) ranges.push_back(part.range);
    before = &part;
  }
  for (const TextRange& range : ranges) pieces.push_back(text.substr(range.begin, range.end - range.begin));
}

void split_pieces(TextPieces& text, const Pattern& pattern, Behavior behavior, bool invert) {
  std::vector<std::string_view> pieces;
  for (const std::string_view piece : text.pieces)
    append_parts(piece, parts_of(piece, pattern, invert), behavior, pieces);
  text.pieces = std::move(pieces);
}

std::string_view own(TextPieces& text, std::string piece, const GrowthLimit& limit) {
  text.owned_bytes += piece.size();
  limit.require(text.owned_bytes);
  return text.owned.emplace_back(std::move(piece));
}

constexpr const char* kGpt2 = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

}  // namespace

PreTokenizer::PreTokenizer(const Json& json, const std::string& source) : source_(source) {
  if (!json.is_null()) add(json, source);
  require_few_steps(steps_.size(), "pre-tokenizer", source_);
}

void PreTokenizer::add(const Json& json, const std::string& source) {
  if (is_byte_level_) throw DataError(fmt::format("{}: the pre-tokenizer \"ByteLevel\" must be the last one", source));
  const std::string type = text_or(json, "type", "", source);
  if (type == "Sequence") {
    for (const Json& step : member(json, "pretokenizers", source)) add(step, source);
  } else if (type == "Split") {
    const bool invert = bool_or(json, "invert", false, source);
    const Behavior behavior = behavior_of(text_or(json, "behavior", "", source), source);
    changes_text_ |= behavior == Behavior::kRemoved;
    steps_.emplace_back([=, pattern = pattern_member(json, source)](TextPieces& text, const char*, const GrowthLimit&) {
      split_pieces(text, pattern, behavior, invert);
    });
  } else if (type == "Digits") {
    const Behavior behavior =
        bool_or(json, "individual_digits", false, source) ? Behavior::kIsolated : Behavior::kContiguous;
    steps_.emplace_back([=, digits = Pattern("\\p{N}", source)](TextPieces& text, const char*, const GrowthLimit&) {
      split_pieces(text, digits, behavior, false);
    });
  } else if (type == "WhitespaceSplit") {
    changes_text_ = true;
    steps_.emplace_back([spaces = Pattern("\\s", source)](TextPieces& text, const char*, const GrowthLimit&) {
      split_pieces(text, spaces, Behavior::kRemoved, false);
    });
  } else if (type == "Metaspace") {
    add_metaspace(json, source);
  } else if (type == "ByteLevel") {
    add_byte_level(json, source);
  } else {
    throw DataError(fmt::format(
        "{}: the pre-tokenizer \"{}\" is not supported; Orthant reads Sequence, Split, Digits, WhitespaceSplit, "
        "Metaspace and ByteLevel",
        source, type));
  }
}

// Replaces spaces by a mark, and puts one before the text or before each piece.
void PreTokenizer::add_metaspace(const Json& json, const std::string& source) {
  const std::string mark = text_or(json, "replacement", "\u2581", source);
  const bool prefix = bool_or(json, "add_prefix_space", true, source);
  const std::string prepend = text_or(json, "prepend_scheme", prefix ? "always" : "never", source);
  const bool splits = bool_or(json, "split", true, source);
  if (prepend != "first" && prepend != "never" && prepend != "always") {
    throw DataError(fmt::format("{}: prepend_scheme = \"{}\" must be first, never or always", source, prepend));
  }
  if (mark.empty()) throw DataError(source + ": the replacement of Metaspace must not be empty");
  changes_text_ = true;
  steps_.emplace_back(
      [=, at_mark = Pattern::of_text(mark)](TextPieces& text, const char* start, const GrowthLimit& limit) {
        for (std::string_view& piece : text.pieces) {
          const bool is_first = piece.data() == start;
          std::string marked;
          for (const char letter : piece) {
            letter == ' ' ? marked += mark : marked += letter;
            limit.require(marked.size());
          }
          if ((prepend == "always" || (prepend == "first" && is_first)) && !marked.starts_with(mark)) {
            marked.insert(0, mark);
          }
          piece = own(text, std::move(marked), limit);
        }
        if (splits) split_pieces(text, at_mark, Behavior::kMergedWithNext, false);
      });
}

void PreTokenizer::add_byte_level(const Json& json, const std::string& source) {
  is_byte_level_ = true;
  if (bool_or(json, "add_prefix_space", true, source)) {
    changes_text_ = true;
    steps_.emplace_back([](TextPieces& text, const char*, const GrowthLimit& limit) {
      for (std::string_view& piece : text.pieces) {
        if (!piece.starts_with(' ')) piece = own(text, " " + std::string(piece), limit);
      }
    });
  }
  if (!bool_or(json, "use_regex", true, source)) return;
  steps_.emplace_back([pattern = Pattern(kGpt2, source)](TextPieces& text, const char*, const GrowthLimit&) {
    split_pieces(text, pattern, Behavior::kIsolated, false);
  });
}

TextPieces PreTokenizer::split(std::string_view section, bool at_start) const {
  TextPieces text;
  if (!section.empty()) text.pieces.push_back(section);
  const GrowthLimit limit(section.size(), "pre-tokenizer", source_);
  for (const Step& step : steps_) step(text, at_start ? section.data() : nullptr, limit);
  return text;
}

}  // namespace orthant
