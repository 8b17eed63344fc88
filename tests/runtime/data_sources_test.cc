// Blends, conversations and validation sets as a run uses them: one rank's numbers on every mesh, exact shares, and
// refusals of data that a run cannot use.
#include <gtest/gtest.h>

#include "base/errors.h"
#include "base/labels.h"
#include "base/text.h"
#include "tests/support/says.h"
#include "tests/support/sweep.h"
#include "tests/support/tensor_cuts.h"

namespace orthant::data_sources_test {
namespace {

using Words = std::vector<std::string>;

constexpr const char* kChatMarkup =
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}";

/// Files for the runs: two texts and conversations of 40 to 70 bytes.
class DataSources : public testing::Test {
 protected:
  DataSources() {
    folder_.write("a.txt", markov_text(1, 3000));
    folder_.write("b.txt", markov_text(2, 900));
    std::string lines;
    for (int i = 0; i < 60; ++i) {
      const std::string body = fmt::format("{} plus {}", i, i * 7 % 30);
      lines += i % 3 == 0 ? fmt::format("{{\"prompt\": \"{}\", \"completion\": \"{}\"}}\n", body, i + i * 7 % 30)
                          : fmt::format(
                                "{{\"messages\": [{{\"role\": \"user\", \"content\": \"{}\"}}, "
                                "{{\"role\": \"assistant\", \"content\": \"{}\"}}]}}\n",
                                body, i + i * 7 % 30);
    }
    folder_.write("chat.jsonl", lines);
    folder_.write("chat.jinja", kChatMarkup);
  }
  Words blend(const std::string& weights = "0.7,0.3") const {
    return {fmt::format("data.path={0}/a.txt,{0}/b.txt", folder_.path()), "data.weights=" + weights,
            "data.validation=0.1"};
  }
  Words chat(bool packs) const {
    return {fmt::format("data.path={}/chat.jsonl", folder_.path()),
            "data.format=chat",
            fmt::format("data.chat_template={}/chat.jinja", folder_.path()),
            "data.validation=0.1",
            "training.seq_len=96",
            "model.max_position_embeddings=96",
            "training.global_batch_size=5",
            fmt::format("data.mask_documents={}", packs)};
  }
  static std::string refusal(const Words& keys) {
    return message_of<ConfigError>([&] { TinyRun run(keys); });
  }
  TempFolder folder_;
};

void expect_one_ranks_numbers(const TinyRun& run, const TensorCut& layout) {
  const Plan plan = run.plan(layout.ranks, layout.keys);
  const auto want = train_ranks(run.plan(1), run.data())[0];
  const auto ranks = train_ranks(plan, run.data());
  for (int rank = 0; rank < layout.ranks; ++rank) {
    for (size_t step = 0; step < want.steps.size(); ++step) {
      const StepTrace &have = ranks[static_cast<size_t>(rank)].steps[step], &one = want.steps[step];
      EXPECT_GT(one.norm, 0);
      EXPECT_LE(std::abs(have.loss - one.loss), 1e-10 * one.loss) << layout.name();
      EXPECT_LT(worst_parameter(plan, have.weights, one.weights, rank).error, 1e-10) << layout.name();
    }
  }
  const auto sums = validate_ranks(plan, run.data()), one = validate_ranks(run.plan(1), run.data());
  EXPECT_EQ(sums[0].labels, one[0].labels) << layout.name();
  EXPECT_NEAR(sums[0].nats, one[0].nats, 1e-10 * one[0].nats) << layout.name();
}

std::vector<TensorCut> layouts() {
  return {{2, {}},
          {2, {kWithRing}},
          {4, {kWithUlysses, kWithRing}},
          {2, {"parallelism.pipeline_parallel_degree=2"}},
          one_dimension(2)};
}

TEST_F(DataSources, ABlendHasOneRanksNumbers) {
  const TinyRun run(blend());
  for (const TensorCut& layout : layouts()) expect_one_ranks_numbers(run, layout);
}

TEST_F(DataSources, ConversationsHaveOneRanksNumbers) {
  for (const bool packs : {true, false}) {
    const TinyRun run(chat(packs));
    for (const TensorCut& layout : layouts()) expect_one_ranks_numbers(run, layout);
  }
}

// Only answers carry loss. Packing changes the samples, but not the text that carries loss.
TEST_F(DataSources, OnlyAnswersCarryLoss) {
  const TinyRun packed(chat(true)), single(chat(false));
  const auto labels = [](const TinyRun& run) {
    std::map<std::string, int> texts;  // the text with loss of each conversation, with its number of occurrences
    const Loader& train = run.data().train;
    const Batch batch = train.batch(0, train.num_samples());
    int64_t count = 0;
    for (int64_t row = 0; row < batch.sequences; ++row) {
      std::string text;
      const auto flush = [&] {
        if (!text.empty()) ++texts[text];
        text.clear();
      };
      for (int64_t i = row * batch.seq_len; i < (row + 1) * batch.seq_len; ++i) {
        const int64_t label = batch.labels[static_cast<size_t>(i)];
        if (label == kIgnoredLabel) {
          flush();
        } else {
          text += label == 256 ? '$' : static_cast<char>(label), ++count;
        }
      }
      flush();
    }
    EXPECT_EQ(count, train.valid_labels(0, train.num_samples()));
    return texts;
  };
  const auto texts = labels(packed);
  EXPECT_EQ(texts, labels(single));
  EXPECT_LT(packed.data().train.num_samples(), single.data().train.num_samples() * 3 / 4);
  EXPECT_EQ(single.data().train.num_samples(), 54);
  for (const auto& [text, times] : texts) {
    EXPECT_NE(text.find_first_of("0123456789"), std::string::npos) << text;
    EXPECT_TRUE(text.ends_with("</>") || text.ends_with("$")) << text;
    EXPECT_EQ(text.find("plus"), std::string::npos) << text;
  }
}

TEST_F(DataSources, TheSharesOfABlendAreItsWeights) {
  const TinyRun run(blend("3,1"));
  const Loader& train = run.data().train;
  std::array<int64_t, 2> taken{};
  for (int64_t g = 0; g < 4000; ++g) ++taken[static_cast<size_t>(train.find(g)->source)];
  EXPECT_EQ(taken, (std::array<int64_t, 2>{3000, 1000}));
  // The held-out documents of each path are a set of their own.
  ASSERT_EQ(run.data().validation.size(), 2u);
  const auto names = set_names_of(std::vector<std::string>{folder_ / "a.txt", folder_ / "b.txt"});
  EXPECT_EQ(run.data().validation[0].name, names[0]);
  EXPECT_EQ(run.data().validation[1].name, names[1]);
  // Other weights, another order: a resumed run would notice.
  EXPECT_NE(run.data().fingerprint, TinyRun(blend("1,3")).data().fingerprint);
}

TEST_F(DataSources, ABlendMixesTextAndMegatronFiles) {
  IndexedDatasetWriter writer(folder_ / "tokens", 257);
  writer.add_document(std::vector<int32_t>(500, 65));
  writer.finish();
  Words keys = blend();
  keys[0] = fmt::format("data.path={0}/a.txt,{0}/tokens", folder_.path());
  const TinyRun run(keys);
  const auto& train = run.data().train;
  EXPECT_EQ(train.batch(1, 1).tokens, std::vector<int64_t>(16, 65));
  EXPECT_FALSE(run.data().text_fingerprint);
}

TEST_F(DataSources, ValidationSetsHaveNames) {
  const TinyRun run(
      {fmt::format("data.path={}/a.txt", folder_.path()),
       fmt::format("data.validation={{one = '{0}/a.txt', two = ['{0}/b.txt', '{0}/a.txt']}}", folder_.path())});
  ASSERT_EQ(run.data().validation.size(), 2u);
  EXPECT_EQ(run.data().validation[0].name, "one");
  EXPECT_EQ(run.data().validation[0].samples.num_tokens(), 3001);
  EXPECT_EQ(run.data().validation[1].samples.num_tokens(), 3902);
}

TEST_F(DataSources, UnusableDataAreRefused) {
  Words keys = blend("1,2,3");
  EXPECT_TRUE(says(refusal(keys), {"data.weights = [1.0, 2.0, 3.0]", "one weight for each of the 2 entries"}));
  keys = blend();
  keys[0] = fmt::format("data.path={0}/a.txt,{0}/a.txt", folder_.path());
  EXPECT_TRUE(says(refusal(keys), {"must name each dataset of a blend once", "a.txt\" twice", "add the two weights"}));
  keys = blend();
  keys.push_back("training.seq_len=2000");
  keys.push_back("model.max_position_embeddings=2000");
  EXPECT_TRUE(says(refusal(keys), {"data.path (" + folder_.path(), "b.txt): ", "training.seq_len + 1 = 2,001",
                                   "lower training.seq_len"}));
  keys = chat(false);
  keys.push_back("training.seq_len=32");
  EXPECT_TRUE(says(refusal(keys), {"a sample holds complete conversations", "more than training.seq_len = 32",
                                   "data.long_documents to \"cut\""}));
  keys.push_back("data.long_documents=cut");
  EXPECT_EQ(refusal(keys), "");
  keys = chat(false);
  keys.push_back("model.objective=masked");
  EXPECT_TRUE(says(refusal(keys), {"model.objective = \"masked\"", "must be \"causal\" with data.format = \"chat\""}));
  EXPECT_TRUE(says(refusal({"data.chat_template=a.jinja"}), {"has no effect with data.format = \"text\""}));
  keys = chat(false);
  keys.push_back("data.tokenizer=train:300");
  EXPECT_TRUE(says(refusal(keys), {"data.tokenizer = \"train:300\"", "must be \"byte\" or name a FILE"}));
}

}  // namespace
}  // namespace orthant::data_sources_test
