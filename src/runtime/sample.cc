#include "runtime/sample.h"

#include "base/labels.h"
#include "base/text.h"
#include "parallel/tensor/run.h"
#include "runtime/session.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace orthant {
namespace {

// The model as it writes: with the logits of all columns, and one token at a time, which no columns can share.
Transformer writer(const Weights& weights, const Plan& plan, Comm& comm) {
  TensorPlan uncut = plan.tensor;
  if (uncut.stream == StreamCut::tokens) uncut.stream = StreamCut::none;
  Primitives primitives = primitives_of(plan, uncut, comm);
  if (plan.tensor.rows * plan.tensor.columns > 1) {
    const bool tied = plan.architecture.tie_word_embeddings;
    const int head = weights[tied ? "model.embed_tokens.weight" : "lm_head.weight"].index;
    primitives = with_whole_logits(comm, std::move(primitives), head, plan.architecture.vocab_size);
  }
  return {plan.architecture, weights, std::move(primitives), {}};
}

// The likeliest of the tokenizer's tokens at each place of one sequence where a label is. The ranks of the first copy
// of the weights work it out, each where its tokens are, and all are told, by the first row in each column.
std::vector<int64_t> likeliest(const Transformer& model, const Plan& plan, const Batch& batch, int64_t ids,
                               Comm& comm) {
  at::NoGradGuard no_grad;
  const std::vector<int64_t> places = plan.places(comm.rank());
  at::Tensor found = at::zeros({batch.seq_len}, at::kDouble);
  const int rank = comm.rank();
  if (comm.mesh().coord(rank, "data") == 0 && comm.mesh().coord(rank, kDepth) == 0) {
    const Microbatch microbatch = to_microbatch(batch, places, plan.config.data.mask_documents);
    at::Tensor x_BTC = model.embed(microbatch);
    for (int layer = 0; layer < plan.architecture.num_hidden_layers; ++layer) {
      x_BTC = model.block(layer, x_BTC, microbatch);
    }
    for (size_t i = 0; i < places.size(); ++i) {
      if (batch.labels[static_cast<size_t>(places[i])] == kIgnoredLabel) continue;
      const at::Tensor logits_V = model.logits(x_BTC.narrow(1, static_cast<int64_t>(i), 1)).flatten();
      found[places[i]] = logits_V.narrow(0, 0, ids).argmax();
    }
    if (comm.mesh().coord(rank, kRow) > 0) found.zero_();
  }
  Axes between = all_axes(comm.mesh());
  std::erase(between, kColumn);
  comm.all_reduce(found, between).wait();
  const double* tokens = found.const_data_ptr<double>();
  return {tokens, tokens + batch.seq_len};
}

// What a token adds to the text of those before it, on one line.
std::string word_after(const std::vector<int32_t>& before, int64_t token, const Tokenizer& tokenizer) {
  std::vector<int32_t> tokens = before;
  tokens.push_back(static_cast<int32_t>(token));
  std::string word = tokenizer.decode(tokens).substr(tokenizer.decode(before).size());
  std::ranges::replace(word, '\n', ' ');
  return word;
}

// "[word]", its spaces outside.
std::string in_brackets(const std::string& word) {
  const auto inner = trim(word);
  if (inner.empty()) return "[" + word + "]";
  const auto at = word.find(inner);
  return fmt::format("{}[{}]{}", word.substr(0, at), inner, word.substr(at + inner.size()));
}

}  // namespace

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

std::string sample_text(const Weights& weights, const Plan& plan, const TrainingData& data, Comm& comm) {
  constexpr int64_t kNewTokens = 240;
  auto prompt = data.tokenizer->encode(data.opening);
  // Half of the context for the prompt at most, so that there is room for what follows.
  const auto half = static_cast<size_t>(std::max<int64_t>(1, plan.architecture.max_position_embeddings / 2));
  prompt.resize(std::min(prompt.size(), half));
  const std::string opening = data.tokenizer->decode(prompt);
  return opening + generate_text(writer(weights, plan, comm), *data.tokenizer, opening, kNewTokens,
                                 {.temperature = 0.7, .top_p = 0.9,
                                  .seed = static_cast<uint64_t>(plan.config.training.seed)})
                       .text;
}

std::string filled_text(const Weights& weights, const Plan& plan, const TrainingData& data, Comm& comm) {
  constexpr size_t kShownBytes = 80;  // about a line
  const Tokenizer& tokenizer = *data.tokenizer;
  Batch batch = (data.held_out ? *data.held_out : data.train).batch(0, 1);
  std::vector<int64_t> text = batch.tokens;
  text.resize(static_cast<size_t>(batch.lengths.empty() ? batch.seq_len : batch.lengths.front()));
  const auto is_hidden = [&](size_t place) { return batch.labels[place] != kIgnoredLabel; };
  for (size_t place = 0; place < text.size(); ++place) {
    if (!is_hidden(place)) continue;
    text[place] = batch.labels[place];
    batch.tokens[place] = mask_token(tokenizer.vocab_size());
  }
  const std::vector<int64_t> guesses =
      likeliest(writer(weights, plan, comm), plan, batch, tokenizer.vocab_size(), comm);

  std::string masked, filled, whole;
  std::vector<int32_t> before;
  for (size_t place = 0; place < text.size() && whole.size() < kShownBytes; ++place) {
    const std::string word = word_after(before, text[place], tokenizer);
    masked += is_hidden(place) ? word.substr(0, word.starts_with(' ')) + "[MASK]" : word;
    filled += is_hidden(place) ? in_brackets(word_after(before, guesses[place], tokenizer)) : word;
    whole += word;
    before.push_back(static_cast<int32_t>(text[place]));
  }
  return fmt::format("masked: {}\nmodel:  {}\ntext:   {}", trim(masked), trim(filled), trim(whole));
}

}  // namespace orthant
