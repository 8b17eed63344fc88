// Chat templates: Jinja programs in the folder of a tokenizer that write a conversation as the text that a model reads.
// jinja2 renders them in a process of python3, as transformers does.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace orthant {

/// A conversation of a JSONL file: its messages, or one prompt and its completion.
struct Conversation {
  std::string prompt, completion;  ///< a pair of texts; both are empty if there are messages
  std::string messages;            ///< JSON: a list of objects with "role" and "content"
  std::string tools;               ///< JSON: the tools that the line offers to the model; empty if there are none
  int64_t first_loss_message = 0;  ///< number of the first message that may carry loss
  std::string source;              ///< file and line, for messages
};

/// A conversation as text.
struct ChatText {
  std::string text;
  std::vector<std::pair<size_t, size_t>> loss_ranges;  ///< ascending ranges of bytes whose tokens carry loss
  bool has_special_tokens = false;  ///< true if a template wrote the text, with its begin and end tokens
};

/// A template, or the statement that there is none: then only pairs of texts can be rendered.
class ChatTemplate {
 public:
  /// Reads the template FILE.jinja. If `file` is empty, reads chat_template.jinja, or else the templates in
  /// tokenizer_config.json, and those in additional_chat_templates/, from the folder of the tokenizer FILE. Texts of
  /// special tokens, such as bos_token, are those of that tokenizer_config.json. Throws ConfigError for a file that
  /// does not exist, and DataError for a damaged one.
  ChatTemplate(const std::string& file, const std::string& tokenizer);
  /// The template that belongs to the tokenizer of a model's directory. Throws as the constructor does.
  static ChatTemplate of_directory(const std::string& directory);

  /// The text of each conversation. Completions and the assistant's messages carry loss. A message is what the template
  /// writes between {% generation %} and {% endgeneration %}, or else the text after the prompt for it. The
  /// variable strftime_now is not defined, so that a template cannot write the date of the day. Throws DataError with
  /// the line if the template fails for a conversation, or if there is none, and ConfigError without python3 or jinja2.
  std::vector<ChatText> render(const std::vector<Conversation>& conversations) const;

  /// For conversations with messages: the text of each with the beginning of the next answer (add_generation_prompt).
  /// Throws as render() does.
  std::vector<std::string> prompts(const std::vector<Conversation>& conversations) const;

  /// The template; of several in one tokenizer_config.json, the one named "default". Empty if there is none.
  std::string text() const;
  /// Hash of all that determines texts: the templates, the special tokens, and the version of the renderer.
  uint64_t fingerprint() const;

 private:
  /// The renderer's answer for each conversation: the text that it writes, and without are_prompts the ranges with
  /// loss.
  std::vector<nlohmann::ordered_json> answers(const std::vector<Conversation>& conversations, bool are_prompts) const;

  std::string file_;            // empty if there is no template
  std::string templates_;       // JSON: name and text of each
  std::string special_tokens_;  // JSON: name and text of each
};

/// The conversation of a JSON list of messages, which may end with any role. `tools` is a JSON list, or empty. Throws
/// DataError, with the source, if one of the two is something else.
Conversation conversation_of(const nlohmann::ordered_json& messages, const std::string& tools,
                             const std::string& source);

/// Reads a line of JSON: an object with "messages", or with "prompt" and "completion", which are two texts or two lists
/// of messages. Throws DataError, with the source, if it is none of these, or if nothing of it carries loss.
Conversation read_conversation(std::string_view line, const std::string& source);

}  // namespace orthant
