#include "data/unigram.h"

#include <algorithm>
#include <limits>
#include <ranges>

#include "base/errors.h"
#include "base/terminal_text.h"
#include "data/utf8.h"

namespace orthant {

Unigram::Unigram(std::vector<Entry> pieces, int32_t unknown, bool byte_fallback)
    : unknown_(unknown), byte_fallback_(byte_fallback) {
  // As in sentencepiece, an unknown character costs this much more than the least likely text.
  constexpr double kUnknownPenalty = 10;
  double least = std::numeric_limits<double>::infinity();
  for (Entry& piece : pieces) {
    least = std::min(least, piece.score);
    texts_.push_back(std::move(piece.text));
    scores_.push_back(piece.score);
  }
  unknown_score_ = least - kUnknownPenalty;
  std::vector<std::pair<std::string_view, int32_t>> texts;
  for (size_t id = 0; id < texts_.size(); ++id) {
    ids_.insert_or_assign(texts_[id], static_cast<int32_t>(id));
  }
  for (const auto& [text, id] : ids_) texts.emplace_back(text, id);
  trie_ = ByteTrie(std::move(texts));
  byte_tokens_.fill(-1);
  for (size_t byte = 0; byte < 256; ++byte) {
    const auto found = ids_.find(fmt::format("<0x{:02X}>", byte));
    if (found != ids_.end()) byte_tokens_[byte] = found->second;
  }
}

bool Unigram::loses_unknown_text() const {
  return !byte_fallback_ || std::ranges::find(byte_tokens_, -1) != byte_tokens_.end();
}

void Unigram::append_unknown(std::string_view text, std::vector<int32_t>& ids) const {
  const auto token = [&](char byte) { return byte_tokens_[static_cast<uint8_t>(byte)]; };
  if (const auto found = ids_.find(text); found != ids_.end()) {
    ids.push_back(found->second);
  } else if (byte_fallback_ && std::ranges::all_of(text, [&](char byte) { return token(byte) >= 0; })) {
    for (const char byte : text) ids.push_back(token(byte));
  } else if (unknown_ >= 0) {
    ids.push_back(unknown_);
  } else {
    throw DataError(
        fmt::format("the tokenizer has no token for \"{}\"; set unk_id in the model of its tokenizer.json, or "
                    "use another tokenizer",
                    escape_for_terminal(text, 40)));
  }
}

void Unigram::encode(std::string_view piece, std::vector<int32_t>& ids) const {
  // By the byte at which a text ends: the best cut of the bytes before it.
  struct Best {
    double score = 0;
    size_t begin = 0;  // of its last text
    int32_t token = -1;
    bool known = false;
  };
  std::vector<Best> best(piece.size() + 1);
  best[0].known = true;
  const auto offer = [&](size_t begin, size_t end, double score, int32_t token) {
    const double sum = score + best[begin].score;
    if (!best[end].known || sum > best[end].score) best[end] = {sum, begin, token, true};
  };
  for (size_t at = 0, length = 0; at < piece.size(); at += length) {
    length = std::max<size_t>(utf8_length(piece.substr(at)), 1);
    bool has_character = false;
    trie_.for_each_prefix(piece.substr(at), [&](size_t bytes, int32_t token) {
      offer(at, at + bytes, scores_[static_cast<size_t>(token)], token);
      has_character |= bytes == length;
    });
    if (!has_character) offer(at, at + length, unknown_score_, -1);
  }
  // Backwards, the ranges of the texts. Unknown neighbors are joined.
  struct Range {
    size_t begin, end;
    int32_t token;
  };
  std::vector<Range> ranges;
  for (size_t end = piece.size(); end > 0; end = best[end].begin) {
    const int32_t token = best[end].token == unknown_ ? -1 : best[end].token;
    if (token < 0 && !ranges.empty() && ranges.back().token < 0) {
      ranges.back().begin = best[end].begin;
    } else {
      ranges.push_back({best[end].begin, end, token});
    }
  }
  for (const Range& range : ranges | std::views::reverse) {
    if (range.token >= 0) ids.push_back(range.token);
    if (range.token < 0) append_unknown(piece.substr(range.begin, range.end - range.begin), ids);
  }
}

}  // namespace orthant
