// orthant generate: generates text with the model of a run, a checkpoint or a Hugging Face directory.
#include <ATen/ATen.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <span>

#include "app/commands.h"
#include "app/run_setup.h"
#include "base/clock.h"
#include "base/errors.h"
#include "base/text.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/hf_directory.h"
#include "data/text_file.h"
#include "model/attention_cache.h"
#include "model/transformer.h"
#include "report/progress.h"
#include "runtime/sample.h"
#include "runtime/snapshot.h"

namespace orthant {
namespace {

namespace fs = std::filesystem;

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

// The prompts of a file, in the order of their lines: each line that is not blank, or of a .jsonl file, plain or
// compressed, the "prompt" of each object.
std::vector<std::string> read_prompts(const std::string& path) {
  std::vector<std::string> prompts;
  if (fs::path(path).filename().string().find(".jsonl") != std::string::npos) {
    const TextFile file = scan_text(path, {.documents = DocumentFormat::kJsonl, .key = "prompt"});
    for_each_piece(file, [&](std::string&& text, bool) { prompts.push_back(std::move(text)); });
  } else {
    constexpr size_t kLongestPrompt = 64 << 20;
    const auto add = [&](std::string_view line) {
      while (line.ends_with('\n') || line.ends_with('\r')) line.remove_suffix(1);
      if (!trim(line).empty()) prompts.emplace_back(line);
    };
    for_each_line(path, add, kLongestPrompt);
  }
  if (prompts.empty()) {
    throw ConfigError(fmt::format("--prompt-file {} has no prompt; write one on each line", path));
  }
  return prompts;
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
    const std::string unknown = unknown_keys_warning(config_, directory + "/config.json");
    if (!unknown.empty()) fmt::print(stderr, "warning: {}\n", unknown);
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
    for (size_t i = 0; i < weights_.parameters().size(); ++i) {
      if (!at::isfinite(weights_.master(i)).all().item<bool>()) {
        throw DataError(fmt::format("{}: {} has values that are not finite; use an earlier checkpoint", directory,
                                    weights_.parameters()[i].name));
      }
    }
  }

  int64_t positions() const { return architecture_.max_position_embeddings; }

  // Continues the prompts together. The first one is prompt number `first` of the command.
  std::vector<GeneratedText> texts(std::span<const std::string> prompts, int64_t first,
                                   const std::function<void(size_t, const std::string&)>& on_text = {}) {
    const auto core = std::make_shared<AttentionCore>(cached_attention());
    const Transformer model(architecture_, weights_, fused_primitives(core), {});
    const Advance advance = advance_texts(positions(), [&](const Microbatch& batch) { return model.logits(batch); });
    return generate_texts(advance, positions(), *tokenizer_, prompts, first,
                          {arguments_.max_new_tokens, arguments_.stops},
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

// Prints the text of --prompt while it grows.
std::vector<GeneratedText> print_text(Generator& generator, const std::string& prompt) {
  TextStream shown;
  std::vector<GeneratedText> made =
      generator.texts({&prompt, 1}, 0, [&](size_t, const std::string& text) { shown.show(prompt + text); });
  shown.end(prompt + made.front().text + "\n");
  return made;
}

// Prints a JSON object for each prompt of the file, in their order, after each batch.
std::vector<GeneratedText> print_objects(Generator& generator, const GenerateArguments& arguments) {
  using OrderedObject = nlohmann::ordered_json;
  const std::vector<std::string> prompts = read_prompts(arguments.prompt_file);
  std::vector<GeneratedText> all;
  while (all.size() < prompts.size()) {
    const size_t first = all.size(),
                 count = std::min(prompts.size() - first, static_cast<size_t>(arguments.batch_size));
    for (GeneratedText& made : generator.texts(std::span(prompts).subspan(first, count), static_cast<int64_t>(first))) {
      const OrderedObject object = {{"prompt", prompts[all.size()]}, {"text", made.text}, {"tokens", made.tokens}};
      fmt::print("{}\n", object.dump(-1, ' ', false, OrderedObject::error_handler_t::replace));
      all.push_back(std::move(made));
    }
    std::fflush(stdout);
  }
  return all;
}

}  // namespace

int generate(const GenerateArguments& arguments) {
  const std::string directory = model_directory(arguments.directory);
  Generator generator(directory, arguments);
  const Clock::time_point start = Clock::now();
  const std::vector<GeneratedText> made =
      arguments.prompt_file.empty() ? print_text(generator, arguments.prompt) : print_objects(generator, arguments);
  const double seconds = seconds_since(start);
  int64_t tokens = 0;
  for (const GeneratedText& text : made) tokens += text.tokens;
  fmt::print(stderr, "{}{} in {}: {:.1f} tokens/s\n", counted(tokens, "token"),
             made.size() > 1 ? fmt::format(" of {} texts", made.size()) : "", format_seconds(seconds),
             static_cast<double>(tokens) / seconds);
  const auto cut = std::ranges::count_if(made, &GeneratedText::out_of_positions);
  if (cut > 0) {
    fmt::print(stderr, "note: {} at the last position of the model, max_position_embeddings = {}\n",
               made.size() > 1 ? fmt::format("{} of the texts end", cut) : "the text ends", generator.positions());
  }
  return kDone;
}

}  // namespace orthant
