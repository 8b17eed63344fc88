// Prints the ids of texts, for tests/oracle/huggingface_tokenizers.py, which compares them with those of Hugging
// Face's `tokenizers`. Arguments: a tokenizer, and a file of texts with a zero byte after each. It prints one line per
// text, with its ids and whether they decode to it, then the seconds of encoding, the size of the vocabulary and the
// end-of-text token.
//
// With a third argument, the file is JSONL of conversations, for tests/oracle/chat_templates.py. It prints the ids of
// each, then a second line that has 1 for each token that carries loss, else 0.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "base/text.h"
#include "data/chat_template.h"
#include "data/text_file.h"
#include "data/tokenize_chat.h"
#include "data/tokenizer.h"

namespace orthant {
namespace {

int encode_texts(const std::string& tokenizer_path, const std::string& texts_path) {
  const auto tokenizer = load_tokenizer(tokenizer_path, "", {});
  std::ostringstream bytes;
  bytes << std::ifstream(texts_path, std::ios::binary).rdbuf();
  const std::string all = bytes.str();
  std::vector<std::string_view> texts;
  for (size_t begin = 0, end; begin < all.size(); begin = end + 1) {
    end = std::min(all.find('\0', begin), all.size());
    texts.push_back(std::string_view(all).substr(begin, end - begin));
  }
  const auto start = std::chrono::steady_clock::now();
  const auto ids = tokenizer->encode_many(texts);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  for (size_t i = 0; i < texts.size(); ++i) {
    fmt::print("{} {}\n", tokenizer->decode(ids[i]) == texts[i] ? "exact" : "changed", fmt::join(ids[i], " "));
  }
  fmt::print("{} {} {}\n", seconds.count(), tokenizer->vocab_size(), tokenizer->end_of_text());
  return 0;
}

int encode_chat(const std::string& tokenizer_path, const std::string& lines_path) {
  const auto tokenizer = load_tokenizer(tokenizer_path, "", {});
  std::vector<Conversation> conversations;
  for_each_json_line(scan_text(lines_path, {.documents = DocumentFormat::kChat}),
                     [&](std::string_view line, const std::string& source) {
                       conversations.push_back(read_conversation(line, source));
                     });
  const std::vector<ChatText> chats = ChatTemplate("", tokenizer_path).render(conversations);
  std::vector<std::string_view> texts;
  for (const ChatText& chat : chats) texts.emplace_back(chat.text);
  const auto ids = tokenizer->encode_many(texts);
  const auto masks = loss_masks(chats, ids, *tokenizer);
  for (size_t i = 0; i < chats.size(); ++i) fmt::print("{}\n{}\n", fmt::join(ids[i], " "), fmt::join(masks[i], " "));
  return 0;
}

}  // namespace
}  // namespace orthant

int main(int count, char** arguments) {
  try {
    if (count == 4) return orthant::encode_chat(arguments[1], arguments[2]);
    return count == 3 ? orthant::encode_texts(arguments[1], arguments[2]) : 2;
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
