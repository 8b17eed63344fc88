// Generation on a mesh: every new token is a row of forwards that the ranks of one replica carry out together.
#include "runtime/sample.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <functional>

#include "base/labels.h"
#include "base/text.h"
#include "model/attention_cache.h"
#include "runtime/from_plan.h"
#include "runtime/inference.h"

namespace orthant {
namespace {

// The most likely of the tokenizer's `ids` tokens at each position of one sequence that has a label, else 0. Ranks of
// the first data shard find them at their own positions; an all-reduce gives them to all ranks.
std::vector<int64_t> most_likely(const Batch& batch, int64_t ids, Session& session, const Plan& plan, Comm& comm) {
  const Microbatch microbatch =
      to_microbatch(batch, plan.token_positions(comm.rank()), plan.config.data.mask_documents);
  const at::Tensor logits_NV = Inference(plan, primitives_of(plan, comm), session, comm).logits(microbatch);
  at::Tensor sums = at::zeros({2, batch.seq_len}, at::kLong);  // of tokens, and the number of ranks that contribute
  if (plan.data_shard_index(comm.rank()) == 0) {
    const at::Tensor places =
        microbatch.sequence_positions_T.masked_select(microbatch.labels_BT.flatten().ne(kIgnoredLabel));
    sums[0].index_copy_(0, places, logits_NV.narrow(1, 0, ids).argmax(1));
    sums[1].index_fill_(0, places, 1);
  }
  comm.all_reduce_small(sums, all_axes(comm.mesh())).wait();
  const at::Tensor tokens = sums[0].floor_divide(sums[1].clamp_min(1));  // equal on all ranks that contribute
  return {tokens.const_data_ptr<int64_t>(), tokens.const_data_ptr<int64_t>() + batch.seq_len};
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

// The offset of the first stop in the text; at least its size if there is none.
size_t find_stop(const std::string& text, const std::vector<std::string>& stop_texts) {
  size_t first = std::string::npos;
  for (const std::string& stop : stop_texts) first = std::min(first, text.find(stop));
  return first;
}

// Length of the longest end of the text that is the beginning of a stop text.
size_t partial_stop_bytes(const std::string& text, const std::vector<std::string>& stop_texts) {
  size_t open = 0;
  for (const std::string& stop : stop_texts) {
    for (size_t bytes = std::min(stop.size() - 1, text.size()); bytes > open; --bytes) {
      if (text.ends_with(std::string_view(stop).substr(0, bytes))) open = bytes;
    }
  }
  return open;
}

}  // namespace

std::vector<GeneratedText> generate_texts(const Advance& advance, int64_t positions, const Tokenizer& tokenizer,
                                          std::span<const Prompt> prompts, int64_t first_prompt,
                                          const GenerationLimits& limits, const Sampling& sampling,
                                          const std::function<void(size_t prompt, const std::string& text)>& on_text) {
  const std::vector<int32_t> marks = tokenizer.begin_tokens();
  std::vector<std::vector<int32_t>> ids;
  std::vector<size_t> prompt_bytes;
  std::vector<std::vector<int64_t>> starts;
  for (const Prompt& prompt : prompts) {
    ids.push_back(tokenizer.encode(prompt.text));
    prompt_bytes.push_back(tokenizer.decode(ids.back()).size());
    starts.emplace_back();
    if (!prompt.has_special_tokens) starts.back().assign(marks.begin(), marks.end());
    starts.back().insert(starts.back().end(), ids.back().begin(), ids.back().end());
    if (starts.back().empty()) starts.back().push_back(tokenizer.end_of_text());
  }
  Sampling drawn = sampling;
  drawn.vocabulary = tokenizer.vocab_size();  // a model may have more embedding rows than the tokenizer has tokens
  std::vector<GeneratedText> texts(prompts.size());
  const auto should_continue = [&](size_t i, std::span<const int64_t> made) {
    std::vector<int32_t> all = ids[i];
    all.insert(all.end(), made.begin(), made.end());
    std::string& text = texts[i].text;
    text = tokenizer.decode(all).substr(prompt_bytes[i]);  // decoding drops the first space of some tokenizers' texts
    const size_t stop = find_stop(text, limits.stop_texts);
    const bool is_stopped = stop < text.size();
    if (is_stopped) text.resize(stop);
    if (on_text) on_text(i, text.substr(0, text.size() - partial_stop_bytes(text, limits.stop_texts)));
    return !is_stopped;
  };
  const std::vector<Generated> made = generate_tokens(advance, positions, starts, limits.max_new_tokens, drawn,
                                                      limits.end_tokens, first_prompt, should_continue);
  for (size_t i = 0; i < texts.size(); ++i) {
    texts[i].tokens = std::ssize(made[i].tokens);
    texts[i].end = made[i].end;
  }
  return texts;
}

std::string sample_text(Session& session, const Plan& plan, const TrainingData& data, Comm& comm) {
  auto prompt = data.tokenizer->encode(data.opening);
  // The prompt takes at most half of the context, to leave room for the continuation.
  const int64_t positions = plan.architecture.max_position_embeddings;
  prompt.resize(std::min(prompt.size(), static_cast<size_t>(std::max<int64_t>(1, positions / 2))));
  const Prompt opening{.text = data.tokenizer->decode(prompt)};
  const Plan generation = make_generation_plan(plan);
  Inference inference(generation, primitives_of(generation, cached_attention(), comm), session, comm);
  const Advance next = advance_texts(positions, [&](const Microbatch& batch) { return inference.logits(batch); });
  const auto texts =
      generate_texts(next, positions, *data.tokenizer, {&opening, 1}, 0,
                     {.end_tokens = data.end_tokens(), .max_new_tokens = plan.config.metrics.sample_tokens},
                     {.temperature = 0.7, .top_p = 0.9, .seed = static_cast<uint64_t>(plan.config.training.seed)});
  return opening.text + texts.front().text;
}

std::string filled_text(Session& session, const Plan& plan, const TrainingData& data, Comm& comm) {
  constexpr size_t kShownBytes = 80;  // about one line
  const Tokenizer& tokenizer = *data.tokenizer;
  Batch batch = (data.validation.empty() ? data.train : data.validation.front().samples).batch(0, 1);
  std::vector<int32_t> text(batch.tokens.begin(), batch.tokens.end());
  text.resize(static_cast<size_t>(batch.lengths.empty() ? batch.seq_len : batch.lengths.front()));
  const auto is_hidden = [&](size_t place) { return batch.labels[place] != kIgnoredLabel; };
  for (size_t place = 0; place < text.size(); ++place) {
    if (!is_hidden(place)) continue;
    text[place] = static_cast<int32_t>(batch.labels[place]);
    batch.tokens[place] = mask_token(tokenizer.vocab_size());
  }
  const auto word_at = [&](size_t place, int64_t token) {
    return word_after({text.begin(), text.begin() + static_cast<std::ptrdiff_t>(place)}, token, tokenizer);
  };
  std::string masked, filled, whole;
  std::vector<std::string> words;  // those shown
  for (; words.size() < text.size() && whole.size() < kShownBytes; whole += words.back()) {
    words.push_back(word_at(words.size(), text[words.size()]));
  }
  // Only tokens that are shown keep their labels, because logits of all tokens might not fit in memory.
  std::fill(batch.labels.begin() + static_cast<std::ptrdiff_t>(words.size()), batch.labels.end(), kIgnoredLabel);
  const std::vector<int64_t> guesses = most_likely(batch, tokenizer.vocab_size(), session, plan, comm);
  for (size_t place = 0; place < words.size(); ++place) {
    const std::string& word = words[place];
    masked += is_hidden(place) ? word.substr(0, word.starts_with(' ')) + "[MASK]" : word;
    filled += is_hidden(place) ? in_brackets(word_at(place, guesses[place])) : word;
  }
  return fmt::format("masked: {}\nmodel:  {}\ntext:   {}", trim(masked), trim(filled), trim(whole));
}

}  // namespace orthant
