// orthant generate: generates text with the model of a run, a checkpoint or a Hugging Face directory.
#include <ATen/ATen.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "app/commands.h"
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

namespace fs = std::filesystem;

// The newest checkpoint of a run folder, or the directory itself if it holds a model.
std::string model_directory(const std::string& directory) {
  if (fs::exists(fs::path(directory) / "config.json")) return directory;
  if (const auto latest = find_latest(directory + "/checkpoints")) return *latest;
  throw ConfigError(
      fmt::format("{} is neither a run folder with checkpoints nor a directory with config.json; name a run folder "
                  "that has saved a checkpoint, such as runs/jargon, or a Hugging Face directory",
                  directory));
}

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

}  // namespace

int generate(const GenerateArguments& arguments) {
  const std::string directory = model_directory(arguments.directory);
  const HfConfig config = read_hf_config(directory);
  if (!config.model.causal()) {
    throw ConfigError(
        fmt::format("{} holds a model trained with model.objective = \"masked\": it predicts masked "
                    "tokens from both sides and cannot continue a text; name a model trained with \"causal\"",
                    directory));
  }
  const auto tokenizer = load_saved_tokenizer(directory);
  if (tokenizer->vocab_size() > config.model.vocab_size) {
    throw DataError(
        fmt::format("{}: the {} tokens of the tokenizer must be at most the {} entries of the model's vocabulary; "
                    "use the tokenizer that belongs to the model",
                    directory, tokenizer->vocab_size(), config.model.vocab_size));
  }
  const Architecture& architecture = config.model;
  Weights weights(parameter_table(architecture), working_dtype(config.torch_dtype));
  load_weights(directory, weights);
  for (size_t i = 0; i < weights.parameters().size(); ++i) {
    if (!at::isfinite(weights.master(i)).all().item<bool>()) {
      throw DataError(fmt::format("{}: {} has values that are not finite; use an earlier checkpoint", directory,
                                  weights.parameters()[i].name));
    }
  }
  const auto core = std::make_shared<AttentionCore>(cached_attention());
  const Transformer model(architecture, weights, fused_primitives(core), {});
  const int64_t positions = architecture.max_position_embeddings;
  TextStream shown;
  const Clock::time_point start = Clock::now();
  const GeneratedText made =
      generate_text(advance_text(positions, [&](const Microbatch& batch) { return model.logits(batch); }), positions,
                    *tokenizer, arguments.prompt, {arguments.max_new_tokens, arguments.stops},
                    {.temperature = arguments.temperature,
                     .top_k = arguments.top_k,
                     .top_p = arguments.top_p,
                     .seed = static_cast<uint64_t>(arguments.seed)},
                    [&](const std::string& text) { shown.show(arguments.prompt + text); });
  shown.end(arguments.prompt + made.text + "\n");
  const double seconds = seconds_since(start);
  fmt::print(stderr, "{} in {}: {:.1f} tokens/s\n", counted(made.tokens, "token"), format_seconds(seconds),
             static_cast<double>(made.tokens) / seconds);
  if (made.out_of_positions) {
    fmt::print(stderr, "note: the text ends at the last position of the model, max_position_embeddings = {}\n",
               positions);
  }
  return kDone;
}

}  // namespace orthant
