#include "data/byte_pairs.h"

#include <algorithm>
#include <limits>
#include <queue>

#include "base/errors.h"
#include "base/hash.h"
#include "data/utf8.h"

namespace orthant {
namespace {

uint64_t pair_of(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

// Above this number of tokens, a queue of merges is faster than looking at all neighbors for each merge.
constexpr size_t kFewTokens = 48;

struct Symbol {
  int32_t token = 0, before = 0, after = 0;  // `before` and `after`: indices of neighbors, -1 at the ends
};

}  // namespace

size_t BytePairs::MixedBits::operator()(uint64_t pair) const { return mix64(pair); }

BytePairs::BytePairs(std::vector<std::string> texts, const std::vector<bool>& no_pieces,
                     const std::vector<Merge>& merges, const Options& options)
    : options_(options), texts_(std::move(texts)) {
  for (size_t id = 0; id < texts_.size(); ++id) {
    if (!texts_[id].empty() && !no_pieces[id]) ids_.try_emplace(texts_[id], static_cast<int32_t>(id));
  }
  for (const Merge& merge : merges) merges_.insert_or_assign(pair_of(merge.left, merge.right), merge);
  byte_tokens_.fill(-1);
  for (int byte = 0; byte < 256; ++byte) {
    const std::string text =
        options_.one_byte_characters ? std::string(1, static_cast<char>(byte)) : fmt::format("<0x{:02X}>", byte);
    if (const auto found = ids_.find(text); found != ids_.end())
      byte_tokens_[static_cast<size_t>(byte)] = found->second;
  }
}

const BytePairs::Merge* BytePairs::find_merge(int32_t left, int32_t right) const {
  const auto found = merges_.find(pair_of(left, right));
  return found == merges_.end() ? nullptr : &found->second;
}

bool BytePairs::loses_unknown_text() const {
  if (!options_.one_byte_characters && !options_.byte_fallback) return true;
  return std::ranges::find(byte_tokens_, -1) != byte_tokens_.end();
}

void BytePairs::append_unknown(std::string_view character, bool after_unknown, std::vector<int32_t>& tokens) const {
  const auto token = [&](char byte) { return byte_tokens_[static_cast<uint8_t>(byte)]; };
  if (options_.byte_fallback && std::ranges::all_of(character, [&](char byte) { return token(byte) >= 0; })) {
    for (const char byte : character) tokens.push_back(token(byte));
  } else if (options_.unknown >= 0 && !(options_.fuse_unknown && after_unknown)) {
    tokens.push_back(options_.unknown);
  }
}

std::vector<int32_t> BytePairs::initial_tokens(std::string_view piece) const {
  std::vector<int32_t> tokens;
  tokens.reserve(piece.size());
  bool after_unknown = false;
  for (size_t at = 0, length = 0; at < piece.size(); at += length) {
    length = options_.one_byte_characters ? 1 : std::max<size_t>(utf8_length(piece.substr(at)), 1);
    const std::string_view character = piece.substr(at, length);
    int32_t token = -1;
    if (options_.one_byte_characters) {
      token = byte_tokens_[static_cast<uint8_t>(character[0])];
    } else if (const auto found = ids_.find(character); found != ids_.end()) {
      token = found->second;
    }
    if (token >= 0) tokens.push_back(token);
    if (token < 0) append_unknown(character, after_unknown, tokens);
    after_unknown = token < 0;
  }
  return tokens;
}

void BytePairs::encode(std::string_view piece, std::vector<int32_t>& ids) const {
  if (options_.whole_pieces_first) {
    if (const auto found = ids_.find(piece); found != ids_.end()) {
      ids.push_back(found->second);
      return;
    }
  }
  std::vector<int32_t> tokens = initial_tokens(piece);
  tokens.size() <= kFewTokens ? merge_few(tokens) : merge_many(tokens);
  ids.insert(ids.end(), tokens.begin(), tokens.end());
}

// Merges the pair of neighbors with the lowest rank, the leftmost of equal ones, until no pair has a merge.
void BytePairs::merge_few(std::vector<int32_t>& tokens) const {
  std::array<const Merge*, kFewTokens> merges;  // of a token and the next one
  for (size_t at = 0; at + 1 < tokens.size(); ++at) merges[at] = find_merge(tokens[at], tokens[at + 1]);
  while (tokens.size() > 1) {
    const size_t pairs_left = tokens.size() - 1;
    size_t best = pairs_left;
    for (size_t at = 0; at < pairs_left; ++at) {
      if (merges[at] && (best == pairs_left || merges[at]->rank < merges[best]->rank)) best = at;
    }
    if (best == pairs_left) return;
    tokens[best] = merges[best]->token;
    tokens.erase(tokens.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    std::copy(merges.begin() + static_cast<std::ptrdiff_t>(best) + 1,
              merges.begin() + static_cast<std::ptrdiff_t>(pairs_left),
              merges.begin() + static_cast<std::ptrdiff_t>(best));
    if (best > 0) merges[best - 1] = find_merge(tokens[best - 1], tokens[best]);
    if (best + 1 < tokens.size()) merges[best] = find_merge(tokens[best], tokens[best + 1]);
  }
}

// The same with a queue of the pairs that have a merge. A pair in the queue is skipped if one of its tokens has been
// merged since.
void BytePairs::merge_many(std::vector<int32_t>& tokens) const {
  struct Candidate {
    int32_t rank, left, token;  // left: index of the left symbol; token: that of the merge
    auto operator<=>(const Candidate&) const = default;
  };
  const auto count = static_cast<int32_t>(tokens.size());
  std::vector<Symbol> symbols;
  for (int32_t at = 0; at < count; ++at) {
    symbols.push_back({tokens[static_cast<size_t>(at)], at - 1, at + 1 < count ? at + 1 : -1});
  }
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue;
  const auto symbol = [&](int32_t at) -> Symbol& { return symbols[static_cast<size_t>(at)]; };
  const auto add = [&](int32_t left) {
    if (left < 0 || symbol(left).after < 0) return;
    const Merge* merge = find_merge(symbol(left).token, symbol(symbol(left).after).token);
    if (merge != nullptr) queue.push({merge->rank, left, merge->token});
  };
  for (int32_t at = 0; at < count; ++at) add(at);
  while (!queue.empty()) {
    const Candidate next = queue.top();
    queue.pop();
    Symbol& left = symbol(next.left);
    if (left.token < 0 || left.after < 0) continue;
    const Merge* merge = find_merge(left.token, symbol(left.after).token);
    if (merge == nullptr || merge->token != next.token) continue;
    Symbol& right = symbol(left.after);
    left.token = next.token;
    left.after = right.after;
    right.token = -1;
    if (left.after >= 0) symbol(left.after).before = next.left;
    add(left.before);
    add(next.left);
  }
  tokens.clear();
  for (int32_t at = 0; at >= 0; at = symbol(at).after) tokens.push_back(symbol(at).token);
}

}  // namespace orthant
