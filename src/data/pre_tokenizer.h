// The "pre_tokenizer" of a tokenizer.json: cuts text into the pieces that a model encodes one by one.
#pragma once

#include <deque>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "data/growth_limit.h"

namespace orthant {

/// Pieces of a text: views of it, or of texts that steps have made.
struct TextPieces {
  std::vector<std::string_view> pieces;
  std::deque<std::string> owned;  // a deque, so that views stay valid while it grows
  size_t owned_bytes = 0;
};

class PreTokenizer {
 public:
  /// `json` may be null: the text is one piece. Throws DataError, with `source`, for a type that Orthant does not know.
  PreTokenizer(const nlohmann::json& json, const std::string& source);

  /// True if the texts of the vocabulary spell bytes as characters (byte_characters.h). split() returns the bytes
  /// themselves.
  bool is_byte_level() const { return is_byte_level_; }
  /// True if joined pieces may differ from the text, as with added spaces.
  bool changes_text() const { return changes_text_; }
  /// The pieces of a section, that is, of the text between two special tokens. None is empty. The section must outlive
  /// them. `at_start`: true if the section is the start of the whole text. Throws DataError if steps make too much
  /// text, by GrowthLimit.
  TextPieces split(std::string_view section, bool at_start) const;

 private:
  // `start`: where the whole text begins, if the section begins there, else null
  using Step = std::function<void(TextPieces&, const char* start, const GrowthLimit&)>;
  void add(const nlohmann::json& json, const std::string& source);
  void add_metaspace(const nlohmann::json& json, const std::string& source);
  void add_byte_level(const nlohmann::json& json, const std::string& source);
  std::string source_;
  std::vector<Step> steps_;
  bool is_byte_level_ = false, changes_text_ = false;
};

}  // namespace orthant
