// orthant generate: generates text with the model of a run, a checkpoint or a Hugging Face directory.
#include <ATen/ATen.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <nlohmann/json.hpp>
#include <span>

#include "app/commands.h"
#include "app/prompts.h"
#include "app/run_setup.h"
#include "base/clock.h"
#include "base/errors.h"
#include "base/text.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/hf_directory.h"
#include "model/attention_cache.h"
#include "model/transformer.h"
#include "report/progress.h"
#include "runtime/sample.h"
#include "runtime/snapshot.h"

namespace orthant {
namespace {

using Json = nlohmann::json;

at::ScalarType working_dtype(const std::string& stored) {
  return stored == "float16" ? at::kFloat : scalar_type(stored);
}

// Prints a text while it grows. A terminal receives visible_text(), because it would execute control characters that a
// model generates. A file receives every byte.
class TextStream {
 public:
  void show(const std::string& text) { print(text, complete_utf8_bytes(text)); }
  void end(const std::string& text) { print(text, text.size()); }

 private:
  // Number of bytes without an incomplete UTF-8 character at the end.
  static size_t complete_utf8_bytes(const std::string& text) {
    for (size_t missing = 1; missing <= std::min<size_t>(3, text.size()); ++missing) {
      const auto byte = static_cast<unsigned char>(text[text.size() - missing]);
      if (byte < 0x80) break;
      if (byte < 0xc0) continue;  // not the first byte of a character
      const size_t length = byte < 0xe0 ? 2 : byte < 0xf0 ? 3 : 4;
      return missing < length ? text.size() - missing : text.size();
    }
    return text.size();
  }
  void print(const std::string& text, size_t end) {
    const std::string more = text.substr(shown_, end - shown_);
    fmt::print("{}", to_terminal_ ? visible_text(more) : more);
    std::fflush(stdout);
    shown_ = end;
  }

  const bool to_terminal_ = isatty(STDOUT_FILENO) == 1;
  size_t shown_ = 0;
};

// The name of a TextEnd in the output.
std::string_view name_of(TextEnd end) {
  switch (end) {
    case TextEnd::end_token:
      return "end_token";
    case TextEnd::stopped:
      return "stop_text";
    case TextEnd::max_new_tokens:
      return "max_new_tokens";
    case TextEnd::last_position:
      return "last_position";
  }
  throw LogicError("an end without a name");
}

// Continues prompts with the model of a directory.
class Generator {
 public:
  Generator(const std::string& directory, const GenerateArguments& arguments)
      : arguments_(arguments),
        config_(read_hf_config(directory)),
        architecture_(config_.model),
        tokenizer_(load_saved_tokenizer(directory)),
        weights_(parameter_table(architecture_), working_dtype(config_.torch_dtype)) {
    print_unknown_keys(directory);
    if (!architecture_.causal()) {
      throw ConfigError(
          fmt::format("{} holds a model trained with model.objective = \"masked\": it predicts masked "
                      "tokens from both sides and cannot continue a text; name a model trained with \"causal\"",
                      directory));
    }
    if (tokenizer_->vocab_size() > architecture_.vocab_size) {
      throw DataError(
          fmt::format("{}: the {} tokens of the tokenizer must be at most the {} entries of the model's vocabulary; "
                      "use the tokenizer that belongs to the model",
                      directory, tokenizer_->vocab_size(), architecture_.vocab_size));
    }
    load_weights(directory, weights_);
  }

  int64_t positions() const { return architecture_.max_position_embeddings; }

  // Throws ConfigError for a prompt that is too long, before any text is made.
  void require_positions(const ReadPrompt& read) const {
    const auto begin = read.prompt.has_special_tokens ? 0 : std::ssize(tokenizer_->begin_tokens());
    const int64_t tokens = begin + std::ssize(tokenizer_->encode(read.prompt.text));
    if (tokens <= positions()) return;
    throw ConfigError(
        fmt::format("{}: the {} tokens of the prompt must be at most the model's "
                    "max_position_embeddings = {}; shorten the prompt",
                    read.source, tokens, positions()));
  }

  // Continues the prompts together. The first one is prompt number `first` of the command.
  std::vector<GeneratedText> texts(std::span<const Prompt> prompts, int64_t first,
                                   const std::function<void(size_t, const std::string&)>& on_text = {}) {
    const auto core = std::make_shared<AttentionCore>(cached_attention());
    const Transformer model(architecture_, weights_, fused_primitives(core), {});
    const Advance advance = advance_texts(positions(), [&](const Microbatch& batch) { return model.logits(batch); });
    return generate_texts(advance, positions(), *tokenizer_, prompts, first,
                          {.end_tokens = end_tokens(config_, tokenizer_->end_of_text()),
                           .max_new_tokens = arguments_.max_new_tokens,
                           .stop_texts = arguments_.stops},
                          {.temperature = arguments_.temperature,
                           .top_k = arguments_.top_k,
                           .top_p = arguments_.top_p,
                           .seed = static_cast<uint64_t>(arguments_.seed)},
                          on_text);
  }

 private:
  const GenerateArguments& arguments_;
  const HfConfig config_;
  const Architecture& architecture_;
  const std::unique_ptr<const Tokenizer> tokenizer_;
  Weights weights_;
};

// Prints the text of --prompt while it grows: the prompt and its continuation, or only the answer to a message.
std::vector<GeneratedText> print_text(Generator& generator, const Prompt& prompt) {
  const std::string shown_prompt = prompt.has_special_tokens ? "" : prompt.text;
  TextStream shown;
  std::vector<GeneratedText> made =
      generator.texts({&prompt, 1}, 0, [&](size_t, const std::string& text) { shown.show(shown_prompt + text); });
  shown.end(shown_prompt + made.front().text + "\n");
  return made;
}

// Prints a JSON object for each prompt, in their order, after each batch: the object of the file with "text", "tokens"
// and "end".
std::vector<GeneratedText> print_objects(Generator& generator, std::span<const ReadPrompt> read, int64_t batch_size) {
  std::vector<Prompt> prompts;
  for (const ReadPrompt& one : read) prompts.push_back(one.prompt);
  std::vector<GeneratedText> all;
  while (all.size() < prompts.size()) {
    const size_t first = all.size(), count = std::min(prompts.size() - first, static_cast<size_t>(batch_size));
    for (GeneratedText& made : generator.texts(std::span(prompts).subspan(first, count), static_cast<int64_t>(first))) {
      std::string object = read[all.size()].object;  // as it was written, with all digits of its numbers
      object.pop_back();                             // the closing brace
      fmt::print("{}, \"text\": {}, \"tokens\": {}, \"end\": \"{}\"}}\n", object,
                 Json(made.text).dump(-1, ' ', false, Json::error_handler_t::replace), made.tokens, name_of(made.end));
      all.push_back(std::move(made));
    }
    if (std::fflush(stdout) != 0) break;  // the reader of the output has left, or the disk is full
  }
  return all;
}

}  // namespace

int generate(const GenerateArguments& arguments) {
  if (arguments.chat && arguments.prompt.empty() && arguments.prompt_file.empty()) {
    throw ConfigError("--chat answers a message; write it with --prompt TEXT, or several with --prompt-file FILE");
  }
  const std::string directory = model_directory(arguments.directory);
  Generator generator(directory, arguments);
  const std::vector<ReadPrompt> prompts = read_prompts(arguments, directory);
  for (const ReadPrompt& one : prompts) generator.require_positions(one);
  const Clock::time_point start = Clock::now();
  const std::vector<GeneratedText> made = arguments.prompt_file.empty()
                                              ? print_text(generator, prompts.front().prompt)
                                              : print_objects(generator, prompts, arguments.batch_size);
  const double seconds = seconds_since(start);
  int64_t tokens = 0;
  for (const GeneratedText& text : made) tokens += text.tokens;
  fmt::print(stderr, "{}{} in {}: {:.1f} tokens/s\n", counted(tokens, "token"),
             made.size() > 1 ? fmt::format(" of {} texts", made.size()) : "", format_seconds(seconds),
             static_cast<double>(tokens) / seconds);
  const auto cut = std::ranges::count(made, TextEnd::last_position, &GeneratedText::end);
  if (cut > 0) {
    fmt::print(stderr, "note: {} at the last position of the model, max_position_embeddings = {}\n",
               made.size() > 1 ? fmt::format("{} of the texts end", cut) : "the text ends", generator.positions());
  }
  return kDone;
}

}  // namespace orthant
