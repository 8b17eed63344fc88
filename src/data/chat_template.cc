#include "data/chat_template.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/errors.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/mapped_file.h"
#include "base/terminal_text.h"
#include "base/text.h"
#include "data/program.h"

namespace orthant {
namespace {

namespace fs = std::filesystem;
using OrderedJson = nlohmann::ordered_json;  // templates may print objects, in the order of their members

// Reads a line with the templates, then one with each conversation; writes a line for each conversation. Offsets are in
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

BEGIN, END = "\ue000\ue001begin\ue001", "\ue000\ue001end\ue001"  # private characters
MOST_CHARACTERS = 64 << 20
marks = {"begin": "", "end": ""}  # the texts around a generation block

class Generation(jinja2.ext.Extension):
    tags = {"generation"}
    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("write"), [], [], body).set_lineno(line)
    def write(self, caller):
        return marks["begin"] + caller() + marks["end"]

def fail(message):
    raise jinja2.exceptions.TemplateError(message)

def to_json(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

job = json.loads(sys.stdin.readline())
environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
    trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
environment.filters["tojson"] = to_json
environment.globals["raise_exception"] = fail
compiled = {}
size = lambda text: len(text.encode("utf-8"))

def normal(message):
    # As in transformers: a key whose value is null is missing, and reasoning has several names.
    message = {key: value for key, value in message.items() if value is not None}
    for key in ("reasoning_content", "thinking", "reasoning"):
        if key in message:
            return {"thinking": message[key], **message, "reasoning_content": message[key]}
    return message

def write(messages, tools, prompt=False):
    name = "tool_use" if tools is not None and "tool_use" in job["templates"] else "default"
    if name not in compiled:
        compiled[name] = environment.from_string(job["templates"][name])
    text = compiled[name].render(messages=messages, tools=tools, documents=None, add_generation_prompt=prompt,
                                 **job["special_tokens"])
    if len(text) > MOST_CHARACTERS:
        fail(f"it writes {len(text)} characters, more than {MOST_CHARACTERS}")
    return text

def write_marked(messages, tools):
    marks.update(begin=BEGIN, end=END)
    try:
        return write(messages, tools)
    finally:
        marks.update(begin="", end="")

def marked_ranges(marked, text, messages, first):
    out, ranges = "", []
    for part in marked.split(BEGIN):
        inside, end, rest = part.partition(END)
        if end:
            ranges.append([size(out), size(out + inside)])
        out += inside + rest
    if out != text:
        fail("its generation blocks stand inside a filter or another expression, which changes their text")
    if first == 0:
        return ranges
    turns = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
    if len(ranges) != len(turns):
        fail(f"it has {len(ranges)} generation blocks, but the conversation has {len(turns)} messages of the assistant")
    return [one for i, one in zip(turns, ranges) if i >= first]

def ranges_after_prompts(text, messages, tools, first):
    ranges = []
    for i, message in enumerate(messages):
        if message["role"] != "assistant" or i < first:
            continue
        before, after = write(messages[:i], tools, True), write(messages[:i + 1], tools)
        if not after.startswith(before):
            fail(f"the text of message {i} (from 0) does not follow the generation prompt before it; write the answers "
                 "between {% generation %} and {% endgeneration %}")
        if not text.startswith(after):
            fail(f"the text up to message {i} (from 0) changes with later messages; split the conversation before it, "
                 "or write the answers between {% generation %} and {% endgeneration %}")
        ranges.append([size(before), size(after)])
    return ranges

for line in sys.stdin:
    one = json.loads(line)
    messages, tools, first = [normal(message) for message in one["messages"]], one["tools"], one["first"]
    try:
        if one["prompt"]:
            answer = {"text": write(messages, tools, True)}
        else:
            text, marked = write(messages, tools), write_marked(messages, tools)
            ranges = (marked_ranges(marked, text, messages, first) if marked != text
                      else ranges_after_prompts(text, messages, tools, first))
            answer = {"text": text, "ranges": ranges}
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

// The templates by name. A single one is "default".
OrderedJson templates_of(const OrderedJson& config, const std::string& source) {
  const auto found = config.find("chat_template");
  if (found == config.end() || found->is_null()) return OrderedJson::object();
  OrderedJson templates = OrderedJson::object();
  if (found->is_string()) templates["default"] = *found;
  if (found->is_object()) templates = *found;
  if (found->is_array()) {
    for (const OrderedJson& one : *found) {
      if (one.is_object() && one.contains("template")) templates[one.value("name", "")] = one["template"];
    }
  }
  const auto is_text = [](const OrderedJson& text) { return text.is_string(); };
  if (templates.contains("default") && std::ranges::all_of(templates, is_text)) return templates;
  throw DataError(source + ": \"chat_template\" must be a text, or several texts, of which one is named \"default\"");
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
  const bool has_folder = fs::is_regular_file(tokenizer);
  const fs::path config_file = folder / "tokenizer_config.json", beside = folder / "chat_template.jinja";
  OrderedJson config = OrderedJson::object(), templates = OrderedJson::object();
  if (has_folder && fs::is_regular_file(config_file)) {
    config = parse_json(read_file(config_file.string()), config_file.string(), LargeIntegers::kToFloat);
    if (!config.is_object()) throw DataError(config_file.string() + " must hold a JSON object");
  }
  if (!file.empty() && !fs::is_regular_file(file)) {
    throw ConfigError(fmt::format("data.chat_template = \"{}\" must name a file with a Jinja template", file));
  }
  if (!file.empty() || (has_folder && fs::is_regular_file(beside))) {
    file_ = file.empty() ? beside.string() : file;
    templates["default"] = read_file(file_);
  } else {
    templates = templates_of(config, config_file.string());
    if (!templates.empty()) file_ = config_file.string();
  }
  const fs::path more = folder / "additional_chat_templates";
  if (file.empty() && has_folder && fs::is_directory(more)) {
    for (const auto& entry : fs::directory_iterator(more)) {
      if (entry.path().extension() != ".jinja") continue;
      templates[entry.path().stem().string()] = read_file(entry.path().string());
      if (file_.empty()) file_ = entry.path().string();
    }
  }
  try {
    templates_ = templates.dump();
    special_tokens_ = special_tokens(config).dump();
  } catch (const OrderedJson::type_error&) {
    throw DataError(file_ + " must be UTF-8 text");
  }
}

ChatTemplate ChatTemplate::of_directory(const std::string& directory) {
  const fs::path json = fs::path(directory) / "tokenizer.json", model = fs::path(directory) / "tokenizer.model";
  return {"", fs::is_regular_file(json) ? json.string() : model.string()};
}

std::vector<OrderedJson> ChatTemplate::answers(const std::vector<Conversation>& conversations, bool are_prompts) const {
  std::string input = fmt::format(R"({{"templates": {}, "special_tokens": {}}})", templates_, special_tokens_) + "\n";
  for (const Conversation& one : conversations) {
    ORTHANT_CHECK(!one.messages.empty(), one.source);
    if (file_.empty()) {
      throw DataError(one.source +
                      " holds messages, which need a chat template, but the folder of the tokenizer has none; name a "
                      "file in data.chat_template, or put a chat_template.jinja into the folder");
    }
    input += fmt::format(R"({{"messages": {}, "tools": {}, "first": {}, "prompt": {}}})", one.messages,
                         one.tools.empty() ? "null" : one.tools, one.first_loss_message, are_prompts) +
             "\n";
  }
  if (conversations.empty()) return {};
  const std::string hint = "chat templates need Python with jinja2: apt-get install python3-jinja2";
  const ProgramResult result = run_program({"python3", "-c", kRenderer}, input, "", hint);
  const std::vector<std::string> lines = split(result.output, '\n');
  if (result.exit_code != 0 || lines.size() < conversations.size()) {
    const std::string reason(trim(result.errors));
    throw ConfigError(fmt::format("python3 could not render {}: {}; {}", file_,
                                  reason.empty() ? fmt::format("it ended with {}", result.exit_code) : reason, hint));
  }
  std::vector<OrderedJson> answers;
  for (size_t i = 0; i < conversations.size(); ++i) {
    answers.push_back(OrderedJson::parse(lines[i], nullptr, false));
    const OrderedJson& answer = answers.back();
    if (answer.is_discarded()) {
      throw ConfigError(fmt::format("python3 prints other text than the renderer of {}: {}", file_,
                                    escape_for_terminal(lines[i], 80)));
    }
    if (answer.contains("error")) {
      throw DataError(fmt::format("{}: the chat template {} fails for it: {}", conversations[i].source, file_,
                                  answer["error"].get<std::string>()));
    }
  }
  return answers;
}

std::vector<ChatText> ChatTemplate::render(const std::vector<Conversation>& conversations) const {
  std::vector<ChatText> texts(conversations.size());
  std::vector<Conversation> with_messages;
  std::vector<size_t> places;
  for (size_t i = 0; i < conversations.size(); ++i) {
    const Conversation& one = conversations[i];
    if (one.messages.empty()) {
      const size_t begin = one.prompt.size();
      texts[i] = {.text = one.prompt + one.completion, .loss_ranges = {{begin, begin + one.completion.size()}}};
      continue;
    }
    with_messages.push_back(one);
    places.push_back(i);
  }
  const std::vector<OrderedJson> rendered = answers(with_messages, false);
  for (size_t k = 0; k < places.size(); ++k) {
    texts[places[k]] = {.text = rendered[k]["text"], .loss_ranges = rendered[k]["ranges"], .has_special_tokens = true};
  }
  return texts;
}

std::vector<std::string> ChatTemplate::prompts(const std::vector<Conversation>& conversations) const {
  std::vector<std::string> texts;
  for (const OrderedJson& answer : answers(conversations, true)) texts.push_back(answer["text"]);
  return texts;
}

std::string ChatTemplate::text() const { return OrderedJson::parse(templates_).value("default", ""); }

uint64_t ChatTemplate::fingerprint() const {
  Hasher hasher;
  hasher.add_field(xxh3(kRenderer));
  hasher.add_field(xxh3(templates_));
  hasher.add_field(xxh3(special_tokens_));
  return hasher.digest();
}

Conversation conversation_of(const OrderedJson& messages, const std::string& tools, const std::string& source) {
  if (!is_list_of_messages(messages) || messages.empty()) {
    throw DataError(source + " must have a list of messages with a \"role\" each as \"messages\"");
  }
  if (!tools.empty() && !tools.starts_with('[')) throw DataError(source + " must have a list as \"tools\"");
  return {.prompt = {}, .completion = {}, .messages = messages.dump(), .tools = tools, .source = source};
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
      if (conversation.completion.empty()) refuse("has an empty completion, so no token of it carries loss");
      return conversation;
    }
    if (!is_list_of_messages(prompt) || !is_list_of_messages(completion)) {
      refuse("must have two texts, or two lists of messages with a \"role\" each, as \"prompt\" and \"completion\"");
    }
    OrderedJson messages = prompt;
    messages.insert(messages.end(), completion.begin(), completion.end());
    conversation.messages = messages.dump();
    conversation.first_loss_message = static_cast<int64_t>(prompt.size());
  } else if (object.contains("messages")) {
    conversation = conversation_of(object["messages"], conversation.tools, source);
  } else {
    refuse("must have the key \"messages\", or \"prompt\" and \"completion\", because data.format = \"chat\"");
  }
  const OrderedJson messages = OrderedJson::parse(conversation.messages);
  for (size_t i = static_cast<size_t>(conversation.first_loss_message); i < messages.size(); ++i) {
    if (messages[i]["role"] == "assistant") return conversation;
  }
  throw DataError(source + " has no message of the assistant, so no token of it carries loss; remove the line");
}

}  // namespace orthant
