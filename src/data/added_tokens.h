// The "added_tokens" of a tokenizer.json: texts that become one token wherever they occur, such as <|endoftext|>.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "data/byte_trie.h"
#include "data/normalizer.h"

namespace orthant {

struct AddedToken {
  std::string text;
  int32_t id = 0;
  bool special = false;      // decodes to no text, such as <|endoftext|>
  bool normalized = false;   // found in normalized text, else in the text as it is
  bool whole_words = false;  // not found inside a word
  bool takes_left_spaces = false, takes_right_spaces = false;
};

/// Throws DataError, with `source`, for damaged entries.
std::vector<AddedToken> read_added_tokens(const nlohmann::json& list, const std::string& source);

/// A section of text, or an added token.
struct TextSection {
  std::string_view text;
  int32_t token = -1;  // -1: the section is text
};

/// Finds these added tokens in text, whatever their `normalized` says. If several begin at the same byte, the longest
/// is found.
class AddedTokenFinder {
 public:
  explicit AddedTokenFinder(std::vector<AddedToken> tokens);
  /// Sections of the text in order; none is empty text. The section of a token includes the spaces that it takes.
  std::vector<TextSection> find(std::string_view text) const;

 private:
  std::vector<AddedToken> tokens_;
  ByteTrie trie_;
  std::string first_bytes_;  // bytes with which tokens begin
};

}  // namespace orthant
