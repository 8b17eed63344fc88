#include "data/tokenize_chat.h"

#include <algorithm>
#include <functional>

#include "base/errors.h"

namespace orthant {
namespace {

// A place in a text where a range with loss begins or ends. Tokenizers do not tell which bytes a token stands for, so
// the text before the place is tokenized alone. If its tokens are the first ones of the full text, they end at the
// place. Else the same is tried with the text after the place. If neither holds, a token has text on both sides of the
// place.
struct Boundary {
  size_t chat = 0;
  size_t place = 0;           // in bytes
  int64_t equal_before = 0;   // first tokens that are equal to those of the text before the place
  int64_t equal_after = 0;    // last tokens that are equal to those of the text after it
  bool ends_before = false;   // all tokens of the text before are equal
  bool begins_after = false;  // all tokens of the text after are equal
};

std::vector<Boundary> boundaries_of(std::span<const ChatText> chats) {
  std::vector<Boundary> boundaries;
  for (size_t chat = 0; chat < chats.size(); ++chat) {
    for (const auto& [begin, end] : chats[chat].loss_ranges) {
      boundaries.push_back({.chat = chat, .place = begin});
      boundaries.push_back({.chat = chat, .place = end});
    }
  }
  return boundaries;
}

// Number of tokens before the boundary. A token that has text on both sides belongs to the range with loss, and so do
// its neighbors that change if the text is split there.
int64_t tokens_before(const Boundary& boundary, int64_t tokens, bool is_begin) {
  if (boundary.ends_before || (is_begin && !boundary.begins_after)) return boundary.equal_before;
  return tokens - boundary.equal_after;
}

// Calls use(i, ids) with the ids of each text. Few texts are encoded at a time, because the texts before all boundaries
// of a long conversation are much longer than the conversation.
void for_each_encoded(std::span<const std::string_view> texts, const Tokenizer& tokenizer,
                      const std::function<void(size_t, std::span<const int32_t>)>& use) {
  for (size_t begin = 0, end; begin < texts.size(); begin = end) {
    size_t bytes = 0;
    for (end = begin; end < texts.size() && (end == begin || bytes + texts[end].size() <= kTextBatchBytes); ++end) {
      bytes += texts[end].size();
    }
    const auto encoded = tokenizer.encode_many(texts.subspan(begin, end - begin));
    for (size_t i = begin; i < end; ++i) use(i, encoded[i - begin]);
  }
}

}  // namespace

std::vector<std::vector<int32_t>> loss_masks(std::span<const ChatText> chats,
                                             std::span<const std::vector<int32_t>> tokens, const Tokenizer& tokenizer) {
  std::vector<Boundary> boundaries = boundaries_of(chats);
  std::vector<std::string_view> before, after;
  for (const Boundary& one : boundaries) before.push_back(std::string_view(chats[one.chat].text).substr(0, one.place));
  std::vector<Boundary*> unclear;
  for_each_encoded(before, tokenizer, [&](size_t i, std::span<const int32_t> ids) {
    Boundary& one = boundaries[i];
    const std::vector<int32_t>& all = tokens[one.chat];
    one.equal_before = std::ranges::mismatch(all, ids).in1 - all.begin();
    one.ends_before = one.equal_before == std::ssize(ids);
    if (one.ends_before) return;
    unclear.push_back(&one);
    after.push_back(std::string_view(chats[one.chat].text).substr(one.place));
  });
  for_each_encoded(after, tokenizer, [&](size_t i, std::span<const int32_t> ids) {
    const std::vector<int32_t>& all = tokens[unclear[i]->chat];
    unclear[i]->equal_after = std::mismatch(all.rbegin(), all.rend(), ids.rbegin(), ids.rend()).first - all.rbegin();
    unclear[i]->begins_after = unclear[i]->equal_after == std::ssize(ids);
  });
  std::vector<std::vector<int32_t>> masks;
  for (const std::vector<int32_t>& all : tokens) masks.emplace_back(all.size(), 0);
  for (size_t i = 0; i < boundaries.size(); i += 2) {
    std::vector<int32_t>& flags = masks[boundaries[i].chat];
    const int64_t begin = tokens_before(boundaries[i], std::ssize(flags), true);
    const int64_t end = tokens_before(boundaries[i + 1], std::ssize(flags), false);
    if (begin < end) std::fill(flags.begin() + begin, flags.begin() + end, 1);
  }
  return masks;
}

int64_t tokenize_chat(std::span<const TextFile> files, const ChatTemplate& chat_template, const Tokenizer& tokenizer,
                      IndexedDatasetWriter& tokens, IndexedDatasetWriter& loss_mask, const TextProgress& progress) {
  int64_t total = 0, done = 0;
  for (const TextFile& file : files) total += file.bytes;
  if (progress) progress(0, total);
  std::vector<Conversation> waiting;
  int64_t waiting_bytes = 0;
  const std::vector<int32_t> begin_tokens = tokenizer.begin_tokens();
  const auto flush = [&] {
    const std::vector<ChatText> chats = chat_template.render(waiting);
    std::vector<std::string_view> texts;
    for (const ChatText& chat : chats) texts.emplace_back(chat.text);
    const std::vector<std::vector<int32_t>> encoded = tokenizer.encode_many(texts);
    const std::vector<std::vector<int32_t>> masks = loss_masks(chats, encoded, tokenizer);
    for (size_t i = 0; i < chats.size(); ++i) {
      std::vector<int32_t> ids = encoded[i], flags = masks[i];
      if (!chats[i].has_special_tokens) {
        ids.insert(ids.begin(), begin_tokens.begin(), begin_tokens.end());
        flags.insert(flags.begin(), begin_tokens.size(), 0);
        ids.push_back(tokenizer.end_of_text());
        flags.push_back(1);
      }
      tokens.add_document(ids);
      loss_mask.add_document(flags);
    }
    done += waiting_bytes;
    waiting.clear();
    waiting_bytes = 0;
    if (progress) progress(std::min(done, total), total);
  };
  for (const TextFile& file : files) {
    for_each_json_line(file, [&](std::string_view line, const std::string& source) {
      waiting.push_back(read_conversation(line, source));
      waiting_bytes += static_cast<int64_t>(line.size());
      if (waiting_bytes >= kTextBatchBytes) flush();
    });
  }
  flush();
  if (progress) progress(total, total);
  return tokens.num_documents();
}

}  // namespace orthant
