// Generates text with a model: for `orthant generate`, and for the sample at the end of a run.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "comm/comm.h"
#include "model/generation.h"
#include "plan/plan.h"
#include "runtime/session.h"
#include "runtime/training_data.h"

namespace orthant {

/// A text to continue. One that a chat template wrote has its own begin tokens; others get those of the tokenizer.
struct Prompt {
  std::string text;
  bool has_special_tokens = false;
};

struct GeneratedText {
  std::string text;
  int64_t tokens = 0;
  TextEnd end = TextEnd::max_new_tokens;
};

struct GenerationLimits {
  std::vector<int64_t> end_tokens;
  int64_t max_new_tokens = 200;
  std::vector<std::string> stop_texts = {};  // the text ends before the first of these; each has at least one byte
};

/// Continues each prompt with a model of `positions` positions; returns only the continuations. Prompt i is number
/// first_prompt + i, which selects its random numbers. `on_text` is called after each new token with the index of the
/// prompt and the continuation so far, without an end that may become a stop. It may end inside a UTF-8 character.
std::vector<GeneratedText> generate_texts(
    const Advance& advance, int64_t positions, const Tokenizer& tokenizer, std::span<const Prompt> prompts,
    int64_t first_prompt, const GenerationLimits& limits, const Sampling& sampling,
    const std::function<void(size_t prompt, const std::string& text)>& on_text = {});

/// A prompt from a held-out document (at most half of the context) and the model's continuation. The replica leaders
/// (ranks with Plan::replica_leader() equal to their own rank), or all ranks if weights are sharded, must call it
/// together. All return the same text.
std::string sample_text(Session& session, const Plan& plan, const TrainingData& data, Comm& comm);

/// Three lines from the beginning of a held-out (else a training) sample. The first has [MASK] for hidden tokens, the
/// second the model's guesses in brackets, the third the original. All ranks must call it together. All return the same
/// text.
std::string filled_text(Session& session, const Plan& plan, const TrainingData& data, Comm& comm);

}  // namespace orthant
