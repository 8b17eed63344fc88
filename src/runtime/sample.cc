#include "runtime/sample.h"

#include <algorithm>

namespace orthant {

GeneratedText generate_text(const Transformer& model, const Tokenizer& tokenizer, const std::string& prompt,
                            int64_t max_new_tokens, const Sampling& sampling) {
  const auto ids = tokenizer.encode(prompt);
  std::vector<int64_t> tokens(ids.begin(), ids.end());
  if (tokens.empty()) tokens.push_back(tokenizer.end_of_text());
  Sampling drawn = sampling;
  drawn.vocabulary = tokenizer.vocab_size();  // a model may have more rows than the tokenizer has ids
  const auto made = generate_tokens(model, tokens, max_new_tokens, drawn, tokenizer.end_of_text());
  return {tokenizer.decode(std::vector<int32_t>(made.tokens.begin(), made.tokens.end())), made.out_of_positions};
}

std::string sample_text(const Transformer& model, const Plan& plan, const TrainingData& data) {
  constexpr int64_t kNewTokens = 240;
  auto prompt = data.tokenizer->encode(data.opening);
  // Half of the context for the prompt at most, so that there is room for what follows.
  const auto half = static_cast<size_t>(std::max<int64_t>(1, plan.architecture.max_position_embeddings / 2));
  prompt.resize(std::min(prompt.size(), half));
  const std::string opening = data.tokenizer->decode(prompt);
  return opening + generate_text(model, *data.tokenizer, opening, kNewTokens,
                                 {.temperature = 0.7, .top_p = 0.9,
                                  .seed = static_cast<uint64_t>(plan.config.training.seed)})
                       .text;
}

}  // namespace orthant
