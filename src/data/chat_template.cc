#include "data/chat_template.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/errors.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/mapped_file.h"
#include "base/text.h"
#include "data/program.h"

namespace orthant {
namespace {

namespace fs = std::filesystem;
using OrderedJson = nlohmann::ordered_json;  // templates may print objects, in the order of their members

// Reads a line with the template, then one with each conversation; writes a line for each conversation. Offsets are in
// bytes of UTF-8. The sandbox and its options are those with which templates of transformers are written.
constexpr const char* kRenderer = R"py(
import sys
sys.path[:] = [folder for folder in sys.path if folder]  # no modules of the working folder
import json
sys.stdin.reconfigure(encoding="utf-8", newline="\n")
try:
    import jinja2.ext, jinja2.nodes, jinja2.sandbox
except ImportError:
    sys.exit("jinja2 is not installed")

BEGIN, END = "\ue000\ue001begin\ue001", "\ue000\ue001end\ue001"  # private characters mark learned text

class Generation(jinja2.ext.Extension):
    tags = {"generation"}
    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        mark = lambda text: jinja2.nodes.Output([jinja2.nodes.TemplateData(text)], lineno=line)
        return [mark(BEGIN), *body, mark(END)]

def fail(message):
    raise jinja2.exceptions.TemplateError(message)

def to_json(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

job = json.loads(sys.stdin.readline())
environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
    trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
environment.filters["tojson"] = to_json
environment.globals["raise_exception"] = fail
size = lambda text: len(text.encode("utf-8"))

def write(messages, tools, prompt):
    return template.render(messages=messages, tools=tools, documents=None, add_generation_prompt=prompt,
                           **job["special_tokens"])

def marked(text, first, messages):
    out, ranges = "", []
    for part in text.split(BEGIN):
        learned, end, rest = part.partition(END)
        if end:
            ranges.append([size(out), size(out + learned)])
        out += learned + rest
    turns = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
    if len(ranges) != len(turns):
        fail(f"it marks {len(ranges)} texts with generation, but the conversation has {len(turns)} assistant turns")
    return out, [range_ for i, range_ in zip(turns, ranges) if i >= first]

def after_prompts(text, first, messages, tools):
    ranges = []
    for i, message in enumerate(messages):
        if message["role"] != "assistant" or i < first:
            continue
        before, after = write(messages[:i], tools, True), write(messages[:i + 1], tools, False)
        if not after.startswith(before):
            fail(f"the text of message {i} (from 0) does not follow the generation prompt before it; mark what the "
                 "model learns with {% generation %} and {% endgeneration %}")
        if not text.startswith(after):
            fail(f"the text up to message {i} (from 0) changes with later messages; split the conversation before it, "
                 "or mark what the model learns with {% generation %} and {% endgeneration %}")
        ranges.append([size(before), size(after)])
    return text, ranges

template = None
for line in sys.stdin:
    one = json.loads(line)
    # As in transformers, a key whose value is null is a key that is missing.
    one["messages"] = [{key: value for key, value in message.items() if value is not None}
                       for message in one["messages"]]
    try:
        template = template or environment.from_string(job["template"])
        text = write(one["messages"], one["tools"], False)
        text, ranges = (marked(text, one["first"], one["messages"]) if BEGIN in text
                        else after_prompts(text, one["first"], one["messages"], one["tools"]))
        answer = {"text": text, "learned": ranges}
    except Exception as error:
        where = getattr(error, "lineno", None)
        answer = {"error": (f"line {where}: " if where else "") + (str(error) or type(error).__name__)}
    print(json.dumps(answer))
)py";

// The text of a special token in tokenizer_config.json: a text, or an object with "content".
std::string token_text(const OrderedJson& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_object() && value.contains("content") && value["content"].is_string()) return value["content"];
  return "";
}

OrderedJson special_tokens(const OrderedJson& config) {
  OrderedJson tokens = OrderedJson::object();
  for (const auto& [name, value] : config.items()) {
    if (name.ends_with("_token") && !token_text(value).empty()) tokens[name] = token_text(value);
  }
  return tokens;
}

// A text, or of a list of named templates the one named "default".
std::string template_of(const OrderedJson& config, const std::string& source) {
  const auto found = config.find("chat_template");
  if (found == config.end() || found->is_null()) return "";
  if (found->is_string()) return *found;
  if (found->is_array()) {
    for (const OrderedJson& one : *found) {
      if (one.is_object() && one.value("name", "") == "default" && one.contains("template")) {
        return token_text(one["template"]);
      }
    }
  }
  throw DataError(source + ": \"chat_template\" must be a text, or a list of templates with one named \"default\"");
}

bool is_list_of_messages(const OrderedJson& value) {
  if (!value.is_array()) return false;
  for (const OrderedJson& message : value) {
    if (!message.is_object() || !message.contains("role") || !message["role"].is_string()) return false;
  }
  return true;
}

}  // namespace

ChatTemplate::ChatTemplate(const std::string& file, const std::string& tokenizer) {
  const fs::path folder = fs::path(tokenizer).parent_path();
  const fs::path config_file = folder / "tokenizer_config.json";
  OrderedJson config = OrderedJson::object();
  if (fs::is_regular_file(tokenizer) && fs::is_regular_file(config_file)) {
    config = parse_json(read_file(config_file.string()), config_file.string(), LargeIntegers::kToFloat);
    if (!config.is_object()) throw DataError(config_file.string() + " must hold a JSON object");
  }
  special_tokens_ = special_tokens(config).dump();
  if (!file.empty()) {
    file_ = file;
    template_ = read_file(file);
  } else if (fs::is_regular_file(tokenizer) && fs::is_regular_file(folder / "chat_template.jinja")) {
    file_ = (folder / "chat_template.jinja").string();
    template_ = read_file(file_);
  } else {
    template_ = template_of(config, config_file.string());
    if (!template_.empty()) file_ = config_file.string();
  }
}

std::vector<ChatText> ChatTemplate::render(const std::vector<Conversation>& conversations) const {
  std::vector<ChatText> texts(conversations.size());
  std::vector<size_t> with_messages;
  std::string input =
      OrderedJson({{"template", template_}, {"special_tokens", OrderedJson::parse(special_tokens_)}}).dump() + "\n";
  for (size_t i = 0; i < conversations.size(); ++i) {
    const Conversation& one = conversations[i];
    if (one.messages.empty()) {
      const size_t begin = one.prompt.size();
      texts[i] = {.text = one.prompt + one.completion, .learned = {{begin, begin + one.completion.size()}}};
      continue;
    }
    if (file_.empty()) {
      throw DataError(one.source +
                      " holds messages, which need a chat template, but there is none beside "
                      "data.tokenizer; name a file in data.chat_template");
    }
    input += fmt::format(R"({{"messages": {}, "tools": {}, "first": {}}})", one.messages,
                         one.tools.empty() ? "null" : one.tools, one.first_learned) +
             "\n";
    with_messages.push_back(i);
  }
  if (with_messages.empty()) return texts;
  const std::string hint = "chat templates need Python with jinja2: apt-get install python3-jinja2";
  const ProgramResult result = run_program({"python3", "-c", kRenderer}, input, "", hint);
  const std::vector<std::string> answers = split(result.output, '\n');
  if (result.exit_code != 0 || answers.size() < with_messages.size()) {
    throw ConfigError(fmt::format("python3 could not render {}: {}; {}", file_, trim(result.errors), hint));
  }
  for (size_t k = 0; k < with_messages.size(); ++k) {
    const size_t i = with_messages[k];
    const OrderedJson answer = OrderedJson::parse(answers[k]);
    if (answer.contains("error")) {
      throw DataError(fmt::format("{}: the chat template {} fails for it: {}", conversations[i].source, file_,
                                  answer["error"].get<std::string>()));
    }
    texts[i] = {.text = answer["text"], .learned = answer["learned"], .is_complete = true};
  }
  return texts;
}

uint64_t ChatTemplate::fingerprint() const {
  Hasher hasher;
  hasher.add_field(xxh3(kRenderer));
  hasher.add_field(xxh3(template_));
  hasher.add_field(xxh3(special_tokens_));
  return hasher.digest();
}

Conversation read_conversation(std::string_view line, const std::string& source) {
  const OrderedJson object = parse_json(line, source, LargeIntegers::kToFloat);
  const auto refuse = [&](const std::string& what) { throw DataError(source + " " + what); };
  if (!object.is_object()) refuse("must be one JSON object, because data.format = \"chat\"");
  Conversation conversation{.source = source};
  if (object.contains("tools") && !object["tools"].is_null()) conversation.tools = object["tools"].dump();
  if (object.contains("prompt") && object.contains("completion")) {
    const OrderedJson &prompt = object["prompt"], &completion = object["completion"];
    if (prompt.is_string() && completion.is_string()) {
      conversation.prompt = prompt, conversation.completion = completion;
      if (conversation.completion.empty()) refuse("has an empty completion, so there is nothing to learn");
      return conversation;
    }
    if (!is_list_of_messages(prompt) || !is_list_of_messages(completion)) {
      refuse("must have two texts, or two lists of messages with a \"role\" each, as \"prompt\" and \"completion\"");
    }
    OrderedJson messages = prompt;
    messages.insert(messages.end(), completion.begin(), completion.end());
    conversation.messages = messages.dump();
    conversation.first_learned = static_cast<int64_t>(prompt.size());
  } else if (object.contains("messages")) {
    if (!is_list_of_messages(object["messages"])) {
      refuse("must have a list of messages with a \"role\" each as \"messages\"");
    }
    conversation.messages = object["messages"].dump();
  } else {
    refuse("must have the key \"messages\", or \"prompt\" and \"completion\", because data.format = \"chat\"");
  }
  const OrderedJson messages = OrderedJson::parse(conversation.messages);
  for (size_t i = static_cast<size_t>(conversation.first_learned); i < messages.size(); ++i) {
    if (messages[i]["role"] == "assistant") return conversation;
  }
  throw DataError(source + " has no message of the assistant, so there is nothing to learn; remove the line");
}

}  // namespace orthant
