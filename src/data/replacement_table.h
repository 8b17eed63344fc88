// sentencepiece's table of replacements, such as nmt_nfkc, as a tokenizer.json has it ("precompiled_charsmap").
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/growth_limit.h"

namespace orthant {

/// Decodes base64. Empty if the text is not base64.
std::optional<std::string> decode_base64(std::string_view text);

class ReplacementTable {
 public:
  /// `bytes`: the length of a double-array trie, the trie, and the texts that replace others, each with a zero at its
  /// end. Throws DataError, with `source`, if they are damaged.
  ReplacementTable(std::string_view bytes, const std::string& source);

  /// The text with its replacements, as Hugging Face's tokenizers make them: a grapheme cluster of up to 5 bytes is
  /// replaced as a whole if the table has its first characters, and other characters are replaced one by one. Throws
  /// DataError if it is too long.
  std::string replace(std::string_view text, const GrowthLimit& limit) const;

 private:
  std::optional<std::string_view> replacement(std::string_view text) const;

  std::vector<uint32_t> units_;
  std::string texts_;
};

}  // namespace orthant
