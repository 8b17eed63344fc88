#include "app/prompts.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/errors.h"
#include "base/json.h"
#include "base/text.h"
#include "data/chat_template.h"
#include "data/text_file.h"

namespace orthant {
namespace {

namespace fs = std::filesystem;
using OrderedJson = nlohmann::ordered_json;

// Collects prompts. All messages are rendered at once, because each call of the template starts a process.
class PromptList {
 public:
  explicit PromptList(bool chat) : chat_(chat) {}

  // `tools`: JSON, or empty.
  void add_text(const std::string& text, const std::string& tools, const std::string& object,
                const std::string& source) {
    if (chat_) {
      add_messages(OrderedJson::array({{{"role", "user"}, {"content", text}}}), tools, object, source);
    } else {
      prompts_.push_back({.prompt = {.text = text}, .object = object, .source = source});
    }
  }

  void add_messages(const OrderedJson& messages, const std::string& tools, const std::string& object,
                    const std::string& source) {
    places_.push_back(prompts_.size());
    conversations_.push_back(conversation_of(messages, tools, source));
    prompts_.push_back({.prompt = {.text = {}, .has_special_tokens = true}, .object = object, .source = source});
  }

  // A line of a .jsonl file.
  void add_line(std::string_view line, const std::string& source) {
    const OrderedJson object = parse_json(line, source, LargeIntegers::kToFloat);
    const auto member = [&](const char* name) -> const OrderedJson* {
      if (!object.is_object()) return nullptr;
      const auto found = object.find(name);
      return found == object.end() || found->is_null() ? nullptr : &*found;
    };
    for (const char* added : {"text", "tokens", "end"}) {
      if (!object.is_object() || !object.contains(added)) continue;
      throw DataError(
          fmt::format("{}: \"{}\" must not be a member, because the output adds it; rename the member", source, added));
    }
    const OrderedJson *prompt = member("prompt"), *messages = member("messages"), *tools = member("tools");
    if ((prompt != nullptr) == (messages != nullptr)) {
      throw DataError(source + " must be a JSON object with either \"prompt\" or \"messages\"");
    }
    if (prompt != nullptr && !prompt->is_string() && !prompt->is_array()) {
      throw DataError(source + ": \"prompt\" must be a text or a list of messages");
    }
    const std::string tools_text = tools != nullptr ? tools->dump() : "", own(trim(line));
    if (prompt != nullptr && prompt->is_string()) {
      add_text(prompt->get<std::string>(), tools_text, own, source);
    } else {
      add_messages(prompt != nullptr ? *prompt : *messages, tools_text, own, source);
    }
  }

  std::vector<ReadPrompt> finish(const std::string& directory) && {
    if (places_.empty()) return std::move(prompts_);
    const ChatTemplate chat_template = ChatTemplate::of_directory(directory);
    if (chat_template.text().empty()) {
      throw ConfigError(fmt::format(
          "{} has no chat template, neither chat_template.jinja nor one in tokenizer_config.json; put one there, or "
          "write the prompts as text, without --chat and \"messages\"",
          directory));
    }
    const std::vector<std::string> texts = chat_template.prompts(conversations_);
    for (size_t i = 0; i < texts.size(); ++i) prompts_[places_[i]].prompt.text = texts[i];
    return std::move(prompts_);
  }

  bool empty() const { return prompts_.empty(); }

 private:
  const bool chat_;
  std::vector<ReadPrompt> prompts_;
  std::vector<Conversation> conversations_;
  std::vector<size_t> places_;  // of the conversations among the prompts
};

}  // namespace

std::vector<ReadPrompt> read_prompts(const GenerateArguments& arguments, const std::string& directory) {
  PromptList list(arguments.chat);
  const std::string& file = arguments.prompt_file;
  const auto object_of = [](std::string_view prompt) {
    return OrderedJson{{"prompt", prompt}}.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
  };
  if (file.empty()) {
    list.add_text(arguments.prompt, "", object_of(arguments.prompt), "--prompt");
    return std::move(list).finish(directory);
  }
  if (!fs::is_regular_file(file)) {
    throw ConfigError(fmt::format("--prompt-file {}: {}; name a file of prompts", file,
                                  fs::exists(file) ? "it is not a regular file" : "there is no such file"));
  }
  if (fs::path(file).filename().string().find(".jsonl") != std::string::npos) {
    const TextFile lines = scan_text(file, {.documents = DocumentFormat::kChat});
    for_each_json_line(lines, [&](std::string_view line, const std::string& source) { list.add_line(line, source); });
  } else {
    constexpr size_t kLongestPrompt = 64 << 20;
    int64_t number = 0;
    const auto add = [&](std::string_view line) {
      const std::string source = fmt::format("{}: line {}", file, ++number);
      if (line.size() + 4 > kLongestPrompt) throw DataError(fmt::format("{} has more than 64 MiB; shorten it", source));
      if (number == 1 && line.starts_with("\xEF\xBB\xBF")) line.remove_prefix(3);  // a byte order mark
      while (line.ends_with('\n') || line.ends_with('\r')) line.remove_suffix(1);
      list.add_text(std::string(line), "", object_of(line), source);
    };
    for_each_line(file, add, kLongestPrompt);
  }
  if (list.empty()) throw ConfigError(fmt::format("--prompt-file {} is empty; write one prompt on each line", file));
  return std::move(list).finish(directory);
}

}  // namespace orthant
