#include "data/added_tokens.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "base/errors.h"
#include "data/json_fields.h"
#include "data/pattern.h"
#include "data/utf8.h"

namespace orthant {
namespace {

// Length of the spaces at the start, or at the end, of a text.
size_t spaces_at_start(std::string_view text) {
  static const Pattern space("\\s", "added_tokens");
  size_t end = 0;
  for (size_t length = utf8_length(text); length > 0; length = utf8_length(text.substr(end))) {
    if (space.find_all(text.substr(end, length)).empty()) break;
    end += length;
  }
  return end;
}
size_t spaces_at_end(std::string_view text) {
  static const Pattern space("\\s", "added_tokens");
  size_t begin = text.size();
  for (size_t length = 1; length <= std::min<size_t>(4, begin); ++length) {
    const std::string_view last = text.substr(begin - length, length);
    if (utf8_length(last) != length) continue;
    if (space.find_all(last).empty()) break;
    begin -= length, length = 0;
  }
  return text.size() - begin;
}

// True if the text begins, or ends, with a character of a word.
bool is_word(std::string_view character) {
  static const Pattern word("[\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\\x{200c}\\x{200d}]", "added_tokens");
  return !word.find_all(character).empty();
}
bool begins_with_word(std::string_view text) { return is_word(text.substr(0, utf8_length(text))); }
bool ends_with_word(std::string_view text) {
  for (size_t length = 1; length <= std::min<size_t>(4, text.size()); ++length) {
    const std::string_view last = text.substr(text.size() - length);
    if (utf8_length(last) == length) return is_word(last);
  }
  return false;
}

}  // namespace

std::vector<AddedToken> read_added_tokens(const nlohmann::json& list, const std::string& source) {
  std::vector<AddedToken> tokens;
  if (list.is_null()) return tokens;
  for (const nlohmann::json& entry : list) {
    AddedToken token{.text = text_or(entry, "content", "", source),
                     .special = bool_or(entry, "special", false, source),
                     .normalized = bool_or(entry, "normalized", true, source),
                     .whole_words = bool_or(entry, "single_word", false, source),
                     .takes_left_spaces = bool_or(entry, "lstrip", false, source),
                     .takes_right_spaces = bool_or(entry, "rstrip", false, source)};
    const nlohmann::json& id = member(entry, "id", source);
    if (token.text.empty()) continue;  // as `tokenizers` does
    if (!id.is_number_unsigned() || id.get<uint64_t>() >= kMostTokens) {
      throw DataError(
          fmt::format("{}: added token {} needs an id from 0 to {}", source, tokens.size(), kMostTokens - 1));
    }
    token.id = id.get<int32_t>();
    tokens.push_back(std::move(token));
  }
  return tokens;
}

AddedTokenFinder::AddedTokenFinder(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  std::vector<std::pair<std::string_view, int32_t>> texts;
  std::set<char> first;
  for (size_t i = 0; i < tokens_.size(); ++i) {
    texts.emplace_back(tokens_[i].text, static_cast<int32_t>(i));
    first.insert(tokens_[i].text[0]);
  }
  trie_ = ByteTrie(std::move(texts));
  first_bytes_.assign(first.begin(), first.end());
}

std::vector<TextSection> AddedTokenFinder::find(std::string_view text) const {
  std::vector<TextSection> sections;
  size_t end = 0;                           // of the sections so far
  size_t spaces_begin = 0, spaces_end = 0;  // of the spaces after a token that were found last
  const auto add_text = [&](size_t to) {
    if (to > end) sections.push_back({text.substr(end, to - end)});
  };
  for (size_t at = text.find_first_of(first_bytes_); at < text.size(); at = text.find_first_of(first_bytes_, at)) {
    int32_t longest = -1;
    trie_.for_each_prefix(text.substr(at), [&](size_t, int32_t token) { longest = token; });
    if (longest < 0) {
      ++at;
      continue;
    }
    const AddedToken& token = tokens_[static_cast<size_t>(longest)];
    size_t begin = at, stop = at + token.text.size();
    at = stop;
    if (token.whole_words && (ends_with_word(text.substr(0, begin)) || begins_with_word(text.substr(stop)))) continue;
    if (token.takes_left_spaces)
      begin = std::max(end, begin - spaces_at_end(text.substr(0, begin).substr(std::min(end, begin))));
    if (token.takes_right_spaces) {
      if (stop < spaces_begin || stop > spaces_end) {
        spaces_begin = stop, spaces_end = stop + spaces_at_start(text.substr(stop));
      }
      stop = spaces_end;
    }
    add_text(begin);
    sections.push_back({text.substr(begin, stop - begin), token.id});
    end = stop;
  }
  add_text(text.size());
  return sections;
}

}  // namespace orthant
