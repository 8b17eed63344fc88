// Chat templates: Jinja programs in the folder of a tokenizer that write a conversation as the text that a model reads.
// jinja2 renders them in a process of python3, as transformers does.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace orthant {

/// A conversation of a JSONL file: its messages, or one prompt and its completion.
struct Conversation {
  std::string prompt, completion;  ///< a pair of texts; both are empty if there are messages
  std::string messages;            ///< JSON: a list of objects with "role" and "content"
  std::string tools;               ///< JSON: the tools that the line offers to the model; empty if there are none
  int64_t first_learned = 0;       ///< the model learns the assistant's messages from this one on
  std::string source;              ///< file and line, for messages
};

/// A conversation as text.
struct ChatText {
  std::string text;
  std::vector<std::pair<size_t, size_t>> learned;  ///< ascending ranges of bytes that the model learns to write
  bool is_complete = false;  ///< true if the text has its own begin and end tokens, as a template writes them
};

class ChatTemplate {
 public:
  /// Reads the template FILE.jinja. If `file` is empty, reads chat_template.jinja, or else the template in
  /// tokenizer_config.json, from the folder of the tokenizer FILE; without these, there is no template, and messages
  /// are refused. Texts of special tokens, such as bos_token, come from that tokenizer_config.json. Throws ConfigError
  /// for a missing file, and DataError for a damaged one.
  ChatTemplate(const std::string& file, const std::string& tokenizer);

  /// The text of each conversation. Learned are completions, and the assistant's messages: the text that the template
  /// puts between {% generation %} and {% endgeneration %}, or else the text after the prompt for that message. The
  /// variable strftime_now is not defined, so that a template cannot write the date of the day. Throws DataError with
  /// the line if the template fails for a conversation, and ConfigError if jinja2 is not installed.
  std::vector<ChatText> render(const std::vector<Conversation>& conversations) const;

  /// Equal for templates that give equal texts.
  uint64_t fingerprint() const;

 private:
  std::string file_;  // empty if there is no template
  std::string template_;
  std::string special_tokens_;  // JSON: name and text of each
};

/// Reads a line of JSON: an object with "messages", or with "prompt" and "completion", which are two texts or two lists
/// of messages. Throws DataError, with the source, if it is none of these or has nothing to learn.
Conversation read_conversation(std::string_view line, const std::string& source);

}  // namespace orthant
