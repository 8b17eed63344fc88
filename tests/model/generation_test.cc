// Generation with a cache of keys and values equals one forward of the full sequence at every position. Sampling draws
// tokens with the probabilities of the logits, and depends on the seed and the index only.
#include "model/generation.h"

#include <gtest/gtest.h>

#include <memory>
#include <numeric>

#include "base/errors.h"
#include "model/attention_cache.h"
#include "model/transformer.h"
#include "tests/support/biases.h"
#include "tests/support/relative_error.h"
#include "tests/support/tiny_model.h"

namespace orthant::generation_test {
namespace {

struct Model {
  explicit Model(const Architecture& a, at::ScalarType dtype = at::kDouble)
      : architecture(a), weights(parameter_table(a), dtype), transformer(a, weights, fused_primitives(), {}) {
    weights.initialize(7);
    draw_biases(weights);
  }
  Architecture architecture;
  Weights weights;
  Transformer transformer;
};

// One text of a model, or several that grow together.
class Text {
 public:
  explicit Text(const Model& model)
      : model_(model.architecture, model.weights, fused_primitives(std::make_shared<AttentionCore>(cached_attention())),
               {}),
        advance_(advance_texts(model.architecture.max_position_embeddings,
                               [this](const Microbatch& batch) { return model_.logits(batch); })) {}
  at::Tensor advance(std::span<const int64_t> tokens) {
    const std::vector<std::vector<int64_t>> one = {{tokens.begin(), tokens.end()}};
    return advance_(std::vector<int64_t>{0}, one)[0];
  }
  const Advance& several() const { return advance_; }

 private:
  const Transformer model_;
  const Advance advance_;
};

std::vector<int64_t> some_tokens(int64_t count, int64_t vocab) {
  std::vector<int64_t> tokens;
  for (int64_t i = 0; i < count; ++i) tokens.push_back((i * i * 7 + 3 * i + 1) % vocab);
  return tokens;
}

// Logits [T, V] of all positions, from one forward of the full sequence.
at::Tensor all_logits(const Model& model, std::span<const int64_t> tokens) {
  at::NoGradGuard no_grad;
  const auto T = static_cast<int64_t>(tokens.size());
  Microbatch batch;
  batch.tokens_BT = at::empty({1, T}, at::kLong);
  std::copy(tokens.begin(), tokens.end(), batch.tokens_BT.mutable_data_ptr<int64_t>());
  batch.positions_BT = at::arange(T).unsqueeze(0);
  batch.sequence_length = T;
  batch.labels_BT = at::zeros({1, T}, at::kLong);
  batch.samples_B = at::zeros({1}, at::kLong);
  return model.transformer.logits(batch);
}

// Tokens decoded one by one, or in pieces of uneven lengths, give the logits of the full forward within 1e-12.
TEST(CachedAttention, EveryPrefixEqualsTheFullForward) {
  for (const TinyOptions& options : {TinyOptions{}, TinyOptions{.tied = true}, TinyOptions{.kv_heads = 1},
                                    TinyOptions{.kv_heads = 4, .llama3 = true}, TinyOptions{.biases = true},
                                     TinyOptions{.qk_norm = true, .mlp = "gelu", .norm = "layer_norm"}}) {
    Architecture a = tiny_architecture(options);
    a.max_position_embeddings = 150;  // long enough that the cache grows twice
    const Model model(a);
    const auto tokens = some_tokens(150, a.vocab_size);
    const at::Tensor expected = all_logits(model, tokens);
    Text token_by_token(model);
    for (size_t t = 0; t < tokens.size(); ++t) {
      const at::Tensor logits = token_by_token.advance(std::span(tokens).subspan(t, 1));
      ASSERT_LT(relative_error(logits, expected[static_cast<int64_t>(t)]), 1e-12) << "position " << t;
    }
    Text in_pieces(model);
    size_t done = 0;
    for (const size_t piece : {5, 1, 70, 1, 1, 72}) {
      const at::Tensor logits = in_pieces.advance(std::span(tokens).subspan(done, piece));
      done += piece;
      ASSERT_LT(relative_error(logits, expected[static_cast<int64_t>(done) - 1]), 1e-12) << "after " << done;
    }
    EXPECT_THROW(in_pieces.advance(std::vector<int64_t>{1}), ConfigError);
  }
}

TEST(CachedAttention, FloatAndBfloat16GiveFloatLogits) {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const Model model(tiny_architecture(), dtype);
    const auto tokens = some_tokens(9, model.architecture.vocab_size);
    Text text(model);
    const at::Tensor logits = text.advance(tokens);
    EXPECT_EQ(logits.scalar_type(), at::kFloat);
    // Both paths round after each of about 11 operators in each of the two blocks, and after 3 more: 25 roundings.
    const double bound = 2 * 25 * (dtype == at::kFloat ? 0x1p-24 : 0x1p-8);
    EXPECT_LT(relative_error(logits, all_logits(model, tokens)[8].to(at::kFloat)), bound);
  }
}

// The negative control: the same last tokens after different first tokens give different logits.
TEST(CachedAttention, LogitsDependOnEarlierTokens) {
  const Model model(tiny_architecture());
  Text a(model), b(model);
  a.advance(std::vector<int64_t>{1, 2});
  b.advance(std::vector<int64_t>{3, 2});
  EXPECT_GT(relative_error(a.advance(std::vector<int64_t>{4}), b.advance(std::vector<int64_t>{4})), 1e-6);
}

// Texts of different lengths that grow together have the logits of each alone, while others end. The control: a text
// that sees the padding before it has other logits.
TEST(CachedAttention, TextsOfABatchDoNotSeeEachOther) {
  for (const TinyOptions& options :
       {TinyOptions{}, TinyOptions{.kv_heads = 1}, TinyOptions{.norm = "layer_norm", .positions = "learned"}}) {
    for (const int64_t window : {0, 3}) {
      Architecture a = tiny_architecture(options);
      a.sliding_window = window;
      const Model model(a);
      const std::vector<int64_t> lengths = {4, 9, 1, 9};
      std::vector<std::vector<int64_t>> prompts;
      for (const int64_t length : lengths) {
        const auto tokens = some_tokens(length + static_cast<int64_t>(prompts.size()), a.vocab_size);
        prompts.emplace_back(tokens.end() - length, tokens.end());
      }
      std::vector<std::unique_ptr<Text>> alone;
      for (size_t i = 0; i < prompts.size(); ++i) alone.push_back(std::make_unique<Text>(model));
      Text together(model);
      std::vector<int64_t> texts = {0, 1, 2, 3};
      std::vector<std::vector<int64_t>> next = prompts;
      for (int64_t step = 0; step < 5; ++step) {
        const at::Tensor logits = together.several()(texts, next);
        ASSERT_EQ(logits.size(0), std::ssize(texts));
        for (size_t row = 0; row < texts.size(); ++row) {
          const at::Tensor expected = alone[static_cast<size_t>(texts[row])]->advance(next[row]);
          EXPECT_LT(relative_error(logits[static_cast<int64_t>(row)], expected), 1e-12) << texts[row] << " " << step;
        }
        if (step == 1) texts = {0, 2, 3};
        if (step == 2) texts = {2};
        next.clear();
        for (const int64_t text : texts) next.push_back({(text + step) % a.vocab_size});
      }
      std::vector<int64_t> with_padding(6, 0);
      with_padding.insert(with_padding.end(), prompts[0].begin(), prompts[0].end());
      EXPECT_GT(relative_error(Text(model).advance(with_padding), Text(model).advance(prompts[0])), 1e-6);
    }
  }
}

at::Tensor logits_of(std::vector<double> probabilities) {
  at::Tensor p = at::empty({static_cast<int64_t>(probabilities.size())}, at::kDouble);
  std::copy(probabilities.begin(), probabilities.end(), p.mutable_data_ptr<double>());
  return p.log();
}

std::vector<int> counts_of(const at::Tensor& logits, const Sampling& sampling, int draws) {
  std::vector<int> counts(static_cast<size_t>(logits.numel()));
  for (int i = 0; i < draws; ++i) ++counts[static_cast<size_t>(sample_token(logits, sampling, i))];
  return counts;
}

TEST(SampleToken, TemperatureZeroIsTheLikeliest) {
  const at::Tensor logits = logits_of({0.2, 0.1, 0.4, 0.3});
  for (int64_t i = 0; i < 50; ++i) EXPECT_EQ(sample_token(logits, {.temperature = 0}, i), 2);
}

TEST(SampleToken, IsAFunctionOfSeedAndIndex) {
  const at::Tensor logits = at::zeros({1000}, at::kDouble);
  std::vector<int64_t> one, again, other;
  for (int64_t i = 0; i < 20; ++i) {
    one.push_back(sample_token(logits, {.temperature = 1, .top_p = 1, .seed = 5}, i));
    again.push_back(sample_token(logits, {.temperature = 1, .top_p = 1, .seed = 5}, i));
    other.push_back(sample_token(logits, {.temperature = 1, .top_p = 1, .seed = 6}, i));
  }
  EXPECT_EQ(one, again);
  EXPECT_NE(one, other);
  EXPECT_NE(one[0], one[1]);
}

// Counts lie within four standard deviations of the binomial distribution.
TEST(SampleToken, DrawsByProbability) {
  constexpr int kDraws = 20000;
  const std::vector<double> p = {0.5, 0.05, 0.3, 0.15};
  auto expect_shares = [&](const std::vector<int>& counts, const std::vector<double>& shares) {
    for (size_t i = 0; i < shares.size(); ++i) {
      const double sigma = std::sqrt(shares[i] * (1 - shares[i]) * kDraws);
      EXPECT_NEAR(counts[i], shares[i] * kDraws, 4 * sigma) << "token " << i;
    }
  };
  expect_shares(counts_of(logits_of(p), {.temperature = 1, .top_p = 1}, kDraws), p);
  // Half the temperature squares the odds of the tokens.
  const double sum = 0.25 + 0.0025 + 0.09 + 0.0225;
  expect_shares(counts_of(logits_of(p), {.temperature = 0.5, .top_p = 1}, kDraws),
                {0.25 / sum, 0.0025 / sum, 0.09 / sum, 0.0225 / sum});
}

TEST(SampleToken, TopPKeepsTheSmallestSetOfThatMass) {
  const at::Tensor logits = logits_of({0.5, 0.05, 0.3, 0.15});
  auto kept = [&](double top_p) {
    std::vector<int> tokens;
    const auto counts = counts_of(logits, {.temperature = 1, .top_p = top_p}, 2000);
    for (size_t i = 0; i < counts.size(); ++i) {
      if (counts[i] > 0) tokens.push_back(static_cast<int>(i));
    }
    return tokens;
  };
  EXPECT_EQ(kept(0.0), (std::vector<int>{0}));
  EXPECT_EQ(kept(0.45), (std::vector<int>{0}));
  EXPECT_EQ(kept(0.7), (std::vector<int>{0, 2}));
  EXPECT_EQ(kept(0.9), (std::vector<int>{0, 2, 3}));
  EXPECT_EQ(kept(1.0), (std::vector<int>{0, 1, 2, 3}));
}

TEST(SampleToken, IdsBeyondTheTokenizerAreNeverDrawn) {
  const at::Tensor logits = logits_of({0.1, 0.2, 0.3, 0.4});
  EXPECT_EQ(sample_token(logits, {.temperature = 0, .vocabulary = 3}, 0), 2);
  const auto counts = counts_of(logits, {.temperature = 1, .top_p = 1, .vocabulary = 2}, 2000);
  EXPECT_EQ(counts[0] + counts[1], 2000);
  EXPECT_GT(counts[0], 500);
}

// Top-p is a share of the probability of the K most likely tokens, not of that of all tokens.
TEST(SampleToken, TopKComesBeforeTopP) {
  const at::Tensor logits = logits_of({0.3, 0.1, 0.4, 0.2});
  const auto drawn = [&](int64_t k, double p) {
    std::vector<int> tokens;
    const auto counts = counts_of(logits, {.temperature = 1, .top_k = k, .top_p = p}, 2000);
    for (int token = 0; token < 4; ++token) {
      if (counts[static_cast<size_t>(token)] > 0) tokens.push_back(token);
    }
    return tokens;
  };
  EXPECT_EQ(drawn(1, 1), (std::vector<int>{2}));
  EXPECT_EQ(drawn(2, 1), (std::vector<int>{0, 2}));
  EXPECT_EQ(drawn(2, 0.5), (std::vector<int>{2}));  // 0.4 of 0.7 is more than half
  EXPECT_EQ(drawn(0, 0.5), (std::vector<int>{0, 2}));
  EXPECT_EQ(drawn(9, 1), (std::vector<int>{0, 1, 2, 3}));
}

// The text is a function of the seed. It ends at the end token, at the requested length or at the last position.
TEST(GenerateTokens, SameSeedSameTextAndItEnds) {
  const Model model(tiny_architecture());
  const std::vector<int64_t> prompt = {1, 2, 3};
  const auto made = [&](std::span<const int64_t> from, int64_t most, const Sampling& sampling, int64_t end) {
    const std::vector<std::vector<int64_t>> prompts = {{from.begin(), from.end()}};
    return generate_tokens(Text(model).several(), model.architecture.max_position_embeddings, prompts, most, sampling,
                           {{-1, end}})
        .front();
  };
  auto text = [&](uint64_t seed, int64_t end = -1) {
    return made(prompt, 30, {.temperature = 1, .top_p = 1, .seed = seed}, end).tokens;
  };
  const auto one = text(5);
  EXPECT_EQ(one.size(), 30u);
  EXPECT_EQ(one, text(5));
  EXPECT_NE(one, text(6));
  // With one[10] as the end token, the same draws end before its first occurrence.
  const auto ended = text(5, one[10]);
  const auto first = std::find(one.begin(), one.end(), one[10]);
  EXPECT_EQ(ended, std::vector<int64_t>(one.begin(), first));
  // The model has 64 positions. The prompt and the text fill them, and the last token drawn needs none because it is
  // never fed back.
  const auto long_text = made(prompt, 1000, {.temperature = 0}, -1);
  EXPECT_EQ(long_text.tokens.size(), 64u - 3u + 1u);
  EXPECT_EQ(long_text.end, TextEnd::last_position);
  EXPECT_EQ(made(prompt, 62, {.temperature = 0}, -1).end, TextEnd::max_new_tokens);
  EXPECT_EQ(made(prompt, 30, {.temperature = 1, .top_p = 1, .seed = 5}, one[10]).end, TextEnd::end_token);
  EXPECT_THROW(made(some_tokens(65, 37), 1, {}, -1), ConfigError);
}

// A text of a batch is the text of its prompt alone, whatever the other prompts are and wherever they end.
TEST(GenerateTokens, TextsOfABatchAreThoseOfEachPrompt) {
  const Model model(tiny_architecture());
  const int64_t positions = model.architecture.max_position_embeddings;
  const std::vector<std::vector<int64_t>> prompts = {some_tokens(50, 37), {5}, some_tokens(12, 37), {5}};
  const Sampling sampling = {.temperature = 1, .top_p = 1, .seed = 3};
  const auto together = generate_tokens(Text(model).several(), positions, prompts, 40, sampling, {{11}}, 20);
  for (size_t i = 0; i < prompts.size(); ++i) {
    const auto alone = generate_tokens(Text(model).several(), positions, {&prompts[i], 1}, 40, sampling, {{11}},
                                       20 + static_cast<int64_t>(i));
    EXPECT_EQ(together[i].tokens, alone[0].tokens) << i;
    EXPECT_EQ(together[i].end, alone[0].end) << i;
  }
  EXPECT_NE(together[1].tokens, together[3].tokens);  // equal prompts have random numbers of their own
}

}  // namespace
}  // namespace orthant::generation_test
