// Text sampled on tensor meshes and pipelines, with the vocabulary sharded or not, equals the text of one rank with the
// same weights in every byte, although no rank holds the full model.
#include <gtest/gtest.h>

#include "runtime/sample.h"
#include "tests/support/pipelines.h"
#include "tests/support/says.h"
#include "tests/support/tensor_cuts.h"

namespace orthant::sample_test {
namespace {

using Write = std::string (*)(Session&, const Plan&, const TrainingData&, Comm&);

// The text that each rank returns, by rank; empty for ranks that take no part.
std::vector<std::string> written(const TinyRun& run, const TensorCut& cut, Write write, bool all_take_part) {
  const Plan plan = run.plan(cut.ranks, cut.keys);
  std::vector<std::string> texts(static_cast<size_t>(cut.ranks));
  run_ranks(cut.ranks, [&](const Rendezvous& rendezvous, int rank) {
    Comm comm(plan.mesh, rank, rendezvous);
    Session session(plan, run.data().train, comm);
    session.weights().initialize(3);
    if (!all_take_part && plan.replica_leader(rank) != rank) return;
    texts[static_cast<size_t>(rank)] = write(session, plan, run.data(), comm);
  });
  return texts;
}

const std::vector<TensorCut> kFew = {one_dimension(2), grid(2, 2, 2)};
std::vector<TensorCut> many() {
  return {one_dimension(2), one_dimension(2, {kNoSequence}), one_dimension(2, {}, 2), grid(2, 2, 1),
          grid(2, 2, 2),    grid(2, 2, 2, {kSumma}),         grid(4, 1, 1),           grid(1, 2, 4),
          grid(1, 1, 2),    grid(2, 2, 1, {kWithRing}, 2),       one_dimension(2, {kWithUlysses}, 2)};
}

void expect_one_ranks_text(const TinyRun& run, const std::vector<TensorCut>& cuts, Write write, bool all_take_part) {
  const std::string one = written(run, {1, {}}, write, all_take_part)[0];
  EXPECT_GT(one.size(), 30u);
  for (const TensorCut& cut : cuts) {
    const std::vector<std::string> texts = written(run, cut, write, all_take_part);
    const Plan plan = run.plan(cut.ranks, cut.keys);
    for (int rank = 0; rank < cut.ranks; ++rank) {
      const bool takes_part = all_take_part || plan.replica_leader(rank) == rank;
      EXPECT_EQ(texts[static_cast<size_t>(rank)], takes_part ? one : "") << cut.name() << ", rank " << rank;
    }
  }
}

TEST(TensorSample, IsOneRanks) {
  const auto model = [](const char* more) {
    return TinyRun({kBatch[0], "model.max_position_embeddings=48", more});
  };
  expect_one_ranks_text(model("training.dtype=float32"), many(), sample_text, false);
  expect_one_ranks_text(model("model.tie_word_embeddings=true"), kFew, sample_text, false);
  expect_one_ranks_text(model("model.sliding_window=5"), kFew, sample_text, false);
  expect_one_ranks_text(model("model.positions=learned"), many(), sample_text, false);
}

TEST(TensorSample, OfMaskedWordsIsOneRanks) {
  expect_one_ranks_text(TinyRun({kBatch[0], "model.objective=masked"}), many(), filled_text, true);
}

std::vector<TensorCut> stages() {
  return {{2, pipeline("1f1b", 2)},
          {2, pipeline("zb_v", 2)},
          {3, pipeline("gpipe", 3, {"parallelism.pipeline_parallel_layers=3,0,1"})},
          {4, pipeline("v_half", 2, {"parallelism.data_parallel_degree=2"})},
          {4, pipeline("1f1b", 2, {kWithRing})},
          grid(2, 2, 1, pipeline("zb_h1", 2), 2),
          one_dimension(2, pipeline("zb_v", 2), 2)};
}

TEST(PipelineSample, IsOneRanks) {
  const Words four = {kBatch[0], "model.num_hidden_layers=4", "model.max_position_embeddings=48"};
  for (const Words& more :
       {Words{"training.dtype=float32"}, {"model.tie_word_embeddings=true"}, {"model.positions=learned"}}) {
    Words words = four;
    words.insert(words.end(), more.begin(), more.end());
    expect_one_ranks_text(TinyRun(words), stages(), sample_text, false);
  }
}

TEST(VocabularySample, IsOneRanks) {
  const std::vector<TensorCut> cuts = {{2, cut("algorithm_2", "1f1b", 2)},
                                       {3, cut("algorithm_1", "interleaved_1f1b", 3)},
                                       {4, cut("naive", "zb_v", 4)},
                                       {4, cut("algorithm_2", "v_min", 2, {"parallelism.data_parallel_degree=2"})},
                                       {4, cut("algorithm_1", "zb_h1", 2, {kWithRing})},
                                       {2, cut("interlaced", "1f1b", 2)}};
  const Words eight = {kBatch[0], kDeep[0], kDeep[1], "model.vocab_size=301"};
  const std::string kTied = "model.tie_word_embeddings=true";
  const auto model = [&](const Words& more) {
    Words words = eight;
    words.insert(words.end(), more.begin(), more.end());
    return TinyRun(words);
  };
  expect_one_ranks_text(model({kTied}), cuts, sample_text, false);
  expect_one_ranks_text(model({kTied, "model.positions=learned"}), cuts, sample_text, false);
  expect_one_ranks_text(model({"model.objective=masked"}), cuts, filled_text, true);
}

TEST(PipelineSample, OfMaskedWordsIsOneRanks) {
  expect_one_ranks_text(TinyRun({kBatch[0], "model.num_hidden_layers=4", "model.objective=masked"}), stages(),
                        filled_text, true);
}

// A model whose most likely text is given.
Advance model_of(const std::string& text) {
  return [text, made = size_t{0}](std::span<const int64_t>, std::span<const std::vector<int64_t>>) mutable {
    const at::Tensor logits = at::zeros({1, 257});
    logits[0][made < text.size() ? static_cast<uint8_t>(text[made]) : 256] = 1;
    ++made;
    return logits;
  };
}

GeneratedText generate_text(const std::string& text, const Tokenizer& tokenizer, const std::string& prompt,
                            const GenerationLimits& limits,
                            const std::function<void(size_t, const std::string&)>& on_text = {}) {
  const Prompt only{.text = prompt};
  return generate_texts(model_of(text), 1000, tokenizer, {&only, 1}, 0, limits, {.temperature = 0}, on_text).front();
}

TEST(GenerateText, EndsBeforeTheFirstStop) {
  const auto tokenizer = make_byte_tokenizer();
  const auto generated = [&](const std::vector<std::string>& stop_texts) {
    std::string shown;
    const GeneratedText made = generate_text("one STtwo STOP three ENDfour", *tokenizer, "prompt",
                                             {.end_tokens = {256}, .max_new_tokens = 100, .stop_texts = stop_texts},
                                             [&](size_t, const std::string& text) {
                                               EXPECT_TRUE(text.starts_with(shown)) << shown << " | " << text;
                                               shown = text;
                                             });
    EXPECT_TRUE(made.text.starts_with(shown));
    return made;
  };
  EXPECT_EQ(generated({}).text, "one STtwo STOP three ENDfour");
  EXPECT_EQ(generated({}).tokens, 28);
  EXPECT_EQ(generated({"END", "STOP"}).text, "one STtwo ");
  EXPECT_EQ(generated({"END", "STOP"}).tokens, 14);
  EXPECT_EQ(generated({"END", "STOP"}).end, TextEnd::stopped);
  EXPECT_EQ(generated({}).end, TextEnd::end_token);
  EXPECT_EQ(generated({"TOP t", "three"}).text, "one STtwo S");
  EXPECT_EQ(generated({"four!"}).text, "one STtwo STOP three ENDfour");  // "four" is held back until the text ends
}

// A tokenizer whose texts begin with a space that decoding drops, as LLaMA 2's.
class SpaceFirst final : public Tokenizer {
 public:
  std::vector<std::vector<int32_t>> encode_many(std::span<const std::string_view> texts) const override {
    std::vector<std::vector<int32_t>> ids;
    for (const std::string_view text : texts) ids.push_back(bytes_->encode(" " + std::string(text)));
    return ids;
  }
  std::string decode(std::span<const int32_t> tokens) const override {
    const std::string text = bytes_->decode(tokens);
    return text.starts_with(' ') ? text.substr(1) : text;
  }
  int32_t token_bytes(int32_t token) const override { return bytes_->token_bytes(token); }
  int32_t vocab_size() const override { return bytes_->vocab_size(); }
  int32_t end_of_text() const override { return bytes_->end_of_text(); }
  std::string name() const override { return ""; }
  uint64_t fingerprint() const override { return 0; }
  void save(const std::string&) const override {}

 private:
  const std::unique_ptr<Tokenizer> bytes_ = make_byte_tokenizer();
};

TEST(GenerateText, KeepsTheSpaceAfterThePrompt) {
  EXPECT_EQ(generate_text(" under", SpaceFirst(), "in", {.end_tokens = {256}}).text, " under");
}

}  // namespace
}  // namespace orthant::sample_test
