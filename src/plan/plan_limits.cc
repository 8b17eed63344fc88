// Estimates sizes in floating point, where nothing overflows, and compares them with the limits.
#include "plan/plan_limits.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/errors.h"
#include "base/text.h"
#include "config/from_config.h"
#include "config/refusal.h"

namespace orthant {

void require_countable(const Config& config, const Architecture& a, int ranks) {
  const auto of = [](int64_t number) { return static_cast<double>(number); };
  const auto& t = config.training;
  const Mesh mesh = make_mesh(config, ranks);
  const double h = of(a.hidden_size), i = of(a.intermediate_size), layers = of(a.num_hidden_layers);
  const double heads = of(a.num_attention_heads + 2 * a.num_key_value_heads) * of(a.head_dim);
  const double projections = layers * 2 * of(a.linformer_length) * of(a.linformer_tokens);
  const double weights = layers * (2 * h * heads + 3 * h * i + 2 * h) + 2 * h * of(a.vocab_size);
  const double tokens = of(t.local_batch_size) * of(t.seq_len);
  const double kept = tokens * (layers * (16 * h + 4 * heads + 8 * i) + 4 * h + of(a.vocab_size));
  const SequencePlan sequence = make_sequence_plan(config, mesh);
  const SequenceAttention attention = attention_of(config, a, t.local_batch_size);
  const double scores = layers * max_saved_score_elements(sequence, attention);
  const double sent = of(t.global_batch_size) * of(t.seq_len) * layers * (h + heads);
  const double run = of(t.steps) * of(t.global_batch_size) * of(t.seq_len);
  const double shares = of(mesh.group_size(batch_axes(mesh)));
  const double microbatches = std::ceil(std::ceil(of(t.global_batch_size) / shares) / of(t.local_batch_size));
  constexpr double kMostMicrobatches = 0x1p16, kMostTokens = 0x1p62;
  const auto check = [&](double value, double limit, const char* what, std::initializer_list<const char*> keys) {
    if (value < limit) return;
    std::vector<std::string> words;
    for (const char* key : keys) words.push_back(config.locate(key));
    throw Refusal(
        fmt::format("{} together make {:.2g} {}, which must be below {:.2g}", join(words, ", "), value, what, limit),
        {keys.begin(), keys.end()}, {limit});
  };
  check(projections, kMostElements, "parameters",
        {"model.linformer_length", "training.seq_len", "model.num_hidden_layers"});
  check(weights, kMostElements, "parameters",
        {"model.hidden_size", "model.intermediate_size", "model.num_hidden_layers", "model.num_attention_heads",
         "model.vocab_size"});
  check(kept, kMostElements, "activations a microbatch",
        {"training.local_batch_size", "training.seq_len", "model.hidden_size", "model.num_hidden_layers"});
  check(scores, kMostElements, "attention scores a microbatch",
        {"training.local_batch_size", "training.seq_len", "model.num_attention_heads", "model.num_hidden_layers",
         "parallelism.context_parallel_attention"});
  check(sent, kMostElements, "elements sent a step",
        {"training.global_batch_size", "training.seq_len", "model.hidden_size", "model.num_hidden_layers"});
  check(run, kMostTokens, "tokens", {"training.steps", "training.global_batch_size", "training.seq_len"});
  if (microbatches <= kMostMicrobatches) return;
  throw Refusal(fmt::format("{} in microbatches of {} makes {:.0f} microbatches a rank, which must be at most {:.0f}",
                            config.locate("training.global_batch_size"), config.locate("training.local_batch_size"),
                            microbatches, kMostMicrobatches),
                {"training.local_batch_size", "training.global_batch_size"}, {shares * kMostMicrobatches});
}

}  // namespace orthant
