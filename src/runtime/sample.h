// Text that a model makes: what `orthant generate` prints, and the sample that closes a run.
#pragma once

#include "comm/comm.h"
#include "model/decoder.h"
#include "plan/plan.h"
#include "runtime/training_data.h"

#include <functional>
#include <string>

namespace orthant {

struct GeneratedText {
  std::string text;
  bool out_of_positions = false;  // it ended because the model has no position left
};

/// Continues the prompt, by a model of so many positions; returns what comes after it. tell: after each token, all of
/// that so far, which may end inside a character.
GeneratedText generate_text(const Advance& advance, int64_t positions, const Tokenizer& tokenizer,
                            const std::string& prompt, int64_t max_new_tokens, const Sampling& sampling,
                            const std::function<void(const std::string& text)>& tell = {});

/// The opening of a held-out document (half of the context at most) and how the model goes on. The ranks of the first
/// copy of the weights (each Plan::first_like() itself) call it together, each with its part, and have the same.
std::string sample_text(const Weights& weights, const Plan& plan, const TrainingData& data, Comm& comm);

/// Three lines: the beginning of a held-out (else a training) sample with [MASK] where tokens are hidden, the same as
/// the model fills it in, and as it is. All ranks call it, each with its part of the weights, and have the same.
std::string filled_text(const Weights& weights, const Plan& plan, const TrainingData& data, Comm& comm);

}  // namespace orthant
