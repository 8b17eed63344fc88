// Generation on a mesh. The ranks of one replica compute each token together: stages in turn, tensor mesh and
// vocabulary shards at once.
#include "runtime/sample.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <functional>

#include "base/labels.h"
#include "base/text.h"
#include "model/loss.h"
#include "parallel/tensor/run.h"
#include "parallel/vocabulary/full_vocabulary.h"
#include "runtime/session.h"

namespace orthant {
namespace {

const Weight& head_of(const Weights& weights) {
  return weights[weights.contains("lm_head.weight") ? "lm_head.weight" : "model.embed_tokens.weight"];
}

// The tensor plan for generation. With one token at a time, columns cannot shard the residual stream by tokens, so it
// is replicated instead.
TensorPlan writers_plan(const Plan& plan) {
  TensorPlan unsharded_plan = plan.tensor;
  if (unsharded_plan.stream == StreamSharding::tokens) unsharded_plan.stream = StreamSharding::none;
  return unsharded_plan;
}

FullVocabulary vocabulary_of(const Plan& plan, Comm& comm) {
  return {.size = plan.architecture.vocab_size,
          .rows = plan.vocabulary_rows(comm.rank()),
          .axes = kOverPipeline,
          .root = plan.stages.back().owner,
          .mesh = {comm, writers_plan(plan), plan.architecture.hidden_size}};
}

// Shape [1, tokens, C] of this rank's shard of the residual stream of one sequence, in generation.
std::vector<int64_t> writers_stream(const Plan& plan, int rank, int64_t tokens) {
  const Range width = plan.tensor.stream == StreamSharding::width
                          ? shard(plan.architecture.hidden_size, plan.tensor.columns, plan.mesh.coord(rank, kColumn))
                          : Range{0, plan.architecture.hidden_size};
  return {1, tokens, width.size()};
}

// If the vocabulary is sharded over the pipeline, all its ranks compute embeddings and logits of one token together.
Primitives with_vocabulary_of_all(Primitives primitives, const Weights& weights, const Plan& plan, Comm& comm) {
  primitives.embedding = [&plan, &comm](const at::Tensor& tokens, const Weight& table) {
    return compute_full_embedding(comm, vocabulary_of(plan, comm), table, tokens);
  };
  primitives.linear = [&plan, &comm, head = &head_of(weights), linear = std::move(primitives.linear)](
                          const at::Tensor& x, const Weight& weight) {
    if (&weight != head) return linear(x, weight);
    return compute_full_logits(comm, vocabulary_of(plan, comm), weight, x.flatten()).view({1, 1, -1});
  };
  return primitives;
}

// The logits [V] of one token. The rank with its residual stream (`here`) calls `logits`. On other ranks the result is
// undefined, or the same logits if the vocabulary is sharded: then all ranks compute them together.
at::Tensor logits_of_all(bool here, const Weights& weights, const Plan& plan, Comm& comm,
                         const std::function<at::Tensor()>& logits) {
  if (here) return logits();
  if (plan.vocabulary.empty()) return {};
  const at::Tensor x_C = at::empty({writers_stream(plan, comm.rank(), 1).back()}, weights.values().options());
  return apply_softcap(compute_full_logits(comm, vocabulary_of(plan, comm), head_of(weights), x_C),
                       plan.architecture.final_logit_softcapping);
}

// The model for generation, with unsharded logits on all columns.
Transformer writer(const Weights& weights, const Plan& plan, Comm& comm) {
  Primitives primitives = primitives_of(plan, writers_plan(plan), comm);
  if (plan.vocabulary.empty() && plan.tensor.rows * plan.tensor.columns > 1) {
    const int head = head_of(weights).index;
    primitives = with_full_logits(comm, std::move(primitives), head, plan.architecture.vocab_size);
  }
  if (!plan.vocabulary.empty()) primitives = with_vocabulary_of_all(std::move(primitives), weights, plan, comm);
  return {plan.architecture, weights, std::move(primitives), {}};
}

// Passes x through all stages, each on its own rank. The result exists only on the last stage's rank, and is undefined
// elsewhere.
template <class Embed, class Block>
at::Tensor through_stages(const Plan& plan, Comm& comm, std::vector<int64_t> shape, const at::TensorOptions& options,
                          Embed embed, Block block) {
  const int here = plan.pipeline_rank(comm.rank());
  at::Tensor x;
  if (!plan.vocabulary.empty()) x = embed();
  for (const Stage& stage : plan.stages) {
    if (stage.owner != here) {
      x = at::Tensor();
    } else {
      if (stage.first && plan.vocabulary.empty()) x = embed();
      for (int64_t layer = stage.layers.begin; layer < stage.layers.end; ++layer) x = block(layer, x);
    }
    if (stage.last) break;
    const int next = (&stage + 1)->owner;
    if (next == stage.owner) continue;
    if (stage.owner == here) comm.send(x = x.contiguous(), kOverPipeline, next).wait();
    if (next == here) comm.recv(x = at::empty(shape, options), kOverPipeline, stage.owner).wait();
  }
  return x;
}

// Decoder::advance() on all ranks that hold stages together; all return the logits.
at::Tensor advance(Decoder& decoder, std::span<const int64_t> tokens, const Weights& weights, const Plan& plan,
                   Comm& comm) {
  const at::NoGradGuard no_grad;
  const at::TensorOptions options = weights.values().options();
  const auto shape = writers_stream(plan, comm.rank(), static_cast<int64_t>(tokens.size()));
  const at::Tensor x = through_stages(
      plan, comm, shape, options, [&] { return decoder.embed(tokens); },
      [&](int64_t layer, const at::Tensor& before) { return decoder.block(layer, before); });
  const at::ScalarType dtype = options.dtype() == at::kDouble ? at::kDouble : at::kFloat;
  at::Tensor logits_V = logits_of_all(x.defined(), weights, plan, comm, [&] { return decoder.logits(x); });
  if (!plan.vocabulary.empty()) return logits_V.to(dtype);
  if (!logits_V.defined()) logits_V = at::empty({plan.architecture.vocab_size}, options.dtype(dtype));
  comm.broadcast(logits_V, kOverPipeline, plan.stages.back().owner).wait();
  return logits_V;
}

// The most likely of the tokenizer's `ids` tokens at each position of one sequence with a label, else 0. The first
// replica computes them, each rank at its own positions. Then an all-reduce over all axes but the columns gives them to
// all ranks; only the first row contributes, because rows compute the same.
std::vector<int64_t> likeliest(const Transformer& model, const Weights& weights, const Plan& plan, const Batch& batch,
                               int64_t ids, Comm& comm) {
  at::NoGradGuard no_grad;
  const std::vector<int64_t> positions = plan.token_positions(comm.rank());
  at::Tensor found = at::zeros({batch.seq_len}, at::kDouble);
  const int rank = comm.rank();
  if (comm.mesh().coord(rank, kData) == 0 && comm.mesh().coord(rank, kDepth) == 0) {
    const Microbatch microbatch = to_microbatch(batch, positions, plan.config.data.mask_documents);
    const at::Tensor x_BTC = through_stages(
        plan, comm, writers_stream(plan, rank, static_cast<int64_t>(positions.size())), weights.values().options(),
        [&] { return model.embed(microbatch); },
        [&](int64_t layer, const at::Tensor& x) { return model.block(static_cast<int>(layer), x, microbatch); });
    for (size_t i = 0; i < positions.size(); ++i) {
      if (batch.labels[static_cast<size_t>(positions[i])] == kIgnoredLabel) continue;
      const at::Tensor logits_V = logits_of_all(x_BTC.defined(), weights, plan, comm, [&] {
        return model.logits(x_BTC.narrow(1, static_cast<int64_t>(i), 1)).flatten();
      });
      if (x_BTC.defined()) found[positions[i]] = logits_V.narrow(0, 0, ids).argmax();
    }
    if (comm.mesh().coord(rank, kRow) > 0) found.zero_();
  }
  Axes between = all_axes(comm.mesh());
  std::erase(between, kColumn);
  comm.all_reduce(found, between).wait();
  const double* tokens = found.const_data_ptr<double>();
  return {tokens, tokens + batch.seq_len};
}

// The text that a token adds after the tokens before it, on one line.
std::string word_after(const std::vector<int32_t>& before, int64_t token, const Tokenizer& tokenizer) {
  std::vector<int32_t> tokens = before;
  tokens.push_back(static_cast<int32_t>(token));
  std::string word = tokenizer.decode(tokens).substr(tokenizer.decode(before).size());
  std::ranges::replace(word, '\n', ' ');
  return word;
}

// "[word]", with leading and trailing spaces outside the brackets.
std::string in_brackets(const std::string& word) {
  const auto inner = trim(word);
  if (inner.empty()) return "[" + word + "]";
  const auto at = word.find(inner);
  return fmt::format("{}[{}]{}", word.substr(0, at), inner, word.substr(at + inner.size()));
}

}  // namespace

GeneratedText generate_text(const Advance& advance, int64_t positions, const Tokenizer& tokenizer,
                            const std::string& prompt, int64_t max_new_tokens, const Sampling& sampling,
                            const std::function<void(const std::string& text)>& tell) {
  const auto ids = tokenizer.encode(prompt);
  std::vector<int64_t> tokens(ids.begin(), ids.end());
  if (tokens.empty()) tokens.push_back(tokenizer.end_of_text());
  Sampling drawn = sampling;
  drawn.vocabulary = tokenizer.vocab_size();  // a model may have more embedding rows than the tokenizer has tokens
  const auto text_of = [&](const std::vector<int64_t>& made) {
    return tokenizer.decode(std::vector<int32_t>(made.begin(), made.end()));
  };
  std::vector<int64_t> so_far;  // after the prompt, which is the first call's tokens
  bool begun = false;
  const Advance watched = [&](std::span<const int64_t> next) {
    if (begun) so_far.insert(so_far.end(), next.begin(), next.end());
    if (begun && tell) tell(text_of(so_far));
    begun = true;
    return advance(next);
  };
  const auto made = generate_tokens(watched, positions, tokens, max_new_tokens, drawn, tokenizer.end_of_text());
  return {text_of(made.tokens), made.out_of_positions};
}

std::string sample_text(const Weights& weights, const Plan& plan, const TrainingData& data, Comm& comm) {
  constexpr int64_t kNewTokens = 240;
  auto prompt = data.tokenizer->encode(data.opening);
  // The prompt takes at most half of the context, to leave room for the continuation.
  const int64_t positions = plan.architecture.max_position_embeddings;
  prompt.resize(std::min(prompt.size(), static_cast<size_t>(std::max<int64_t>(1, positions / 2))));
  const std::string opening = data.tokenizer->decode(prompt);
  const Transformer model = writer(weights, plan, comm);
  Decoder decoder(model);
  const auto next = [&](std::span<const int64_t> tokens) { return advance(decoder, tokens, weights, plan, comm); };
  return opening + generate_text(next, positions, *data.tokenizer, opening, kNewTokens,
                                 {.temperature = 0.7, .top_p = 0.9,
                                  .seed = static_cast<uint64_t>(plan.config.training.seed)})
                       .text;
}

std::string filled_text(const Weights& weights, const Plan& plan, const TrainingData& data, Comm& comm) {
  constexpr size_t kShownBytes = 80;  // about one line
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
      likeliest(writer(weights, plan, comm), weights, plan, batch, tokenizer.vocab_size(), comm);

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
