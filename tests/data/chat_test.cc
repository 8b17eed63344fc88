// Conversations: their texts by template, their loss masks, and samples of complete conversations.
#include <gtest/gtest.h>

#include <numeric>
#include <set>

#include "base/errors.h"
#include "base/labels.h"
#include "data/chat_samples.h"
#include "data/corpus.h"
#include "data/tokenize_chat.h"
#include "tests/support/says.h"
#include "tests/support/temp_folder.h"

namespace orthant::chat_test {
namespace {

constexpr const char* kMarkup =
    "{% for message in messages %}<{{ message.role }}>{{ message.content }}</>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}";

// The parts of a conversation that carry loss, joined by '|'.
std::string with_loss(const ChatText& chat) {
  std::string text;
  for (const auto& [begin, end] : chat.loss_ranges) text += chat.text.substr(begin, end - begin) + "|";
  return text;
}

class Chat : public testing::Test {
 protected:
  ChatText render(const std::string& jinja, const std::string& line) {
    const ChatTemplate chat(folder_.write("chat.jinja", jinja), "byte");
    return chat.render({read_conversation(line, "a.jsonl: line 3")}).front();
  }
  std::string refusal(const std::string& jinja, const std::string& line) {
    return message_of<DataError>([&] { render(jinja, line); });
  }
  TempFolder folder_;
};

TEST_F(Chat, AnswersCarryLoss) {
  const ChatText two = render(kMarkup, R"({"messages": [
    {"role": "system", "content": "s"}, {"role": "user", "content": "\u00fc"},
    {"role": "assistant", "content": "\u00e4"},
    {"role": "user", "content": "d"}, {"role": "assistant", "content": "e"}]})");
  EXPECT_EQ(two.text, "<system>s</><user>\u00fc</><assistant>\u00e4</><user>d</><assistant>e</>");
  EXPECT_EQ(with_loss(two), "\u00e4</>|e</>|");
  EXPECT_TRUE(two.has_special_tokens);
  // Nothing of a prompt of messages carries loss, not even an answer.
  EXPECT_EQ(with_loss(render(kMarkup, R"({"prompt": [{"role": "user", "content": "a"},
    {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}],
    "completion": [{"role": "assistant", "content": "d"}]})")),
            "d</>|");
  const ChatText pair = render("", R"({"prompt": "2+2=", "completion": "4"})");
  EXPECT_EQ(pair.text, "2+2=4");
  EXPECT_EQ(with_loss(pair), "4|");
  EXPECT_FALSE(pair.has_special_tokens);
}

TEST_F(Chat, ATemplateMayMarkTheAnswers) {
  const char* marked =
      "{% for m in messages %}{% if m.role == 'assistant' %}A:{% generation %}{{ m.content }}.{% endgeneration %}"
      "{% else %}U:{{ m.content }}{% endif %};{% endfor %}";
  const ChatText text = render(marked, R"({"messages": [{"role": "user", "content": "a"},
    {"role": "assistant", "content": "b"}, {"role": "assistant", "content": "c"}]})");
  EXPECT_EQ(text.text, "U:a;A:b.;A:c.;");
  EXPECT_EQ(with_loss(text), "b.|c.|");
}

TEST_F(Chat, TemplatesAndSpecialTokensComeFromTheTokenizersFolder) {
  const std::string tokenizer = folder_.write("tokenizer.json", "{}");
  const std::vector<Conversation> hello = {
      read_conversation(R"({"messages": [{"role": "assistant", "content": "hi"}]})", "line")};
  EXPECT_TRUE(says(message_of<DataError>([&] { ChatTemplate("", tokenizer).render(hello); }),
                   {"line holds messages, which need a chat template", "data.chat_template"}));
  const std::string body = "{{ bos_token }}{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}";
  folder_.write("tokenizer_config.json",
                R"({"bos_token": {"content": "<s>"}, "eos_token": "</s>", "chat_template": ")" + body + "\"}");
  EXPECT_EQ(ChatTemplate("", tokenizer).render(hello).front().text, "<s>hi</s>");
  EXPECT_EQ(ChatTemplate(folder_.write("a.jinja", "{{ bos_token }}!{% for m in messages %}{{ m.content }}{% endfor %}"),
                         tokenizer)
                .render(hello)
                .front()
                .text,
            "<s>!hi");
  folder_.write("chat_template.jinja", "{{ eos_token }}{% for m in messages %}{{ m.content }}{% endfor %}");
  EXPECT_EQ(ChatTemplate("", tokenizer).render(hello).front().text, "</s>hi");
}

// As in transformers: keys that are null are missing, reasoning has several names, and a list of templates may have one
// for conversations with tools.
TEST_F(Chat, MessagesAreThoseOfTransformers) {
  const ChatText text = render(
      "{% for m in messages %}{{ m.role }}:{{ m.reasoning_content }},{{ m.thinking }},{{ 'name' in m }};{% endfor %}",
      R"({"messages": [{"role": "assistant", "content": "x", "reasoning": "r", "name": null}]})");
  EXPECT_EQ(text.text, "assistant:r,r,False;");
  const std::string tokenizer = folder_.write("tokenizer.json", "{}");
  folder_.write("tokenizer_config.json", R"({"chat_template": [
    {"name": "default", "template": "{% for m in messages %}{{ m.content }}{% endfor %}"},
    {"name": "tool_use", "template": "{{ tools | length }}{% for m in messages %} {{ m.content }}{% endfor %}"}]})");
  const ChatTemplate chat("", tokenizer);
  const auto with = [&](const std::string& tools) {
    const std::string line = R"({"messages": [{"role": "assistant", "content": "hi"}])" + tools + "}";
    return chat.render({read_conversation(line, "line")}).front().text;
  };
  EXPECT_EQ(with(""), "hi");
  EXPECT_EQ(with(R"(, "tools": [{"a": 1}])"), "1 hi");
  EXPECT_EQ(chat.text(), "{% for m in messages %}{{ m.content }}{% endfor %}");
}

TEST_F(Chat, BadLinesAndFailingTemplatesAreNamed) {
  const std::string user = R"({"messages": [{"role": "user", "content": "a"}]})";
  const std::string both = R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
    {"role": "user", "content": "c"}, {"role": "assistant", "content": "d"}]})";
  EXPECT_TRUE(says(refusal(kMarkup, user), {"a.jsonl: line 3 has no message of the assistant"}));
  EXPECT_TRUE(says(refusal(kMarkup, "[1]"), {"must be one JSON object"}));
  EXPECT_TRUE(says(refusal(kMarkup, R"({"text": "a"})"), {"must have the key \"messages\", or \"prompt\""}));
  EXPECT_TRUE(says(refusal(kMarkup, R"({"messages": [{"content": "a"}]})"), {"a list of messages with a \"role\""}));
  EXPECT_TRUE(says(refusal(kMarkup, R"({"prompt": "a", "completion": ""})"), {"empty completion"}));
  EXPECT_TRUE(
      says(refusal("{{ raise_exception('no roles') }}", both), {"line 3", "chat.jinja fails for it: no roles"}));
  EXPECT_TRUE(says(refusal("a\n{% for %}", both), {"fails for it: line 2"}));
  EXPECT_TRUE(says(refusal("{{ ''.__class__.__mro__ }}", both), {"fails for it"}));  // the sandbox
  EXPECT_TRUE(says(refusal("{{ messages | length }}", both), {"message 1", "{% generation %}"}));
  const char* last_differs = "{% for m in messages %}{{ m.content }}{% if loop.last %}!{% endif %}{% endfor %}";
  EXPECT_TRUE(says(refusal(last_differs, both), {"message 1"}));
  const char* filtered =
      "{% for m in messages %}{{ '<' }}{% filter upper %}{% generation %}{{ m.content }}{% endgeneration %}{% "
      "endfilter %}"
      "{% endfor %}";
  EXPECT_TRUE(says(refusal(filtered, both), {"generation blocks stand inside a filter"}));
  EXPECT_TRUE(says(refusal("{% for i in range(70000) %}{{ 'a' * 1000 }}{% endfor %}", both),
                   {"writes 70000000 characters, more than 67108864"}));
  EXPECT_TRUE(says(message_of<ConfigError>([&] { ChatTemplate(folder_ / "none.jinja", "byte"); }),
                   {"data.chat_template", "none.jinja", "must name a file"}));
}

TEST_F(Chat, LossMasksAreOneForTokensOfAnswers) {
  const auto tokenizer = make_byte_tokenizer();
  const std::vector<ChatText> chats = {{.text = "Q: 2+2 A: 4", .loss_ranges = {{9, 11}}, .has_special_tokens = false},
                                       {.text = "abc", .loss_ranges = {{0, 1}, {2, 3}}, .has_special_tokens = true}};
  const std::vector<std::vector<int32_t>> ids = {tokenizer->encode(chats[0].text), tokenizer->encode(chats[1].text)};
  EXPECT_EQ(loss_masks(chats, ids, *tokenizer),
            (std::vector<std::vector<int32_t>>{{0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1}, {1, 0, 1}}));
}

// Documents of the lengths, of which the last `answer` tokens carry loss; token i of document d is 100 d + i.
struct Conversations {
  IndexedDataset tokens, loss_mask;
  std::vector<int64_t> all;
};

Conversations conversations(const TempFolder& folder, const std::vector<int>& lengths, int answer) {
  IndexedDatasetWriter tokens(folder / "tokens", 1 << 20), loss_mask(folder / "loss_mask", 2);
  for (size_t d = 0; d < lengths.size(); ++d) {
    std::vector<int32_t> ids(static_cast<size_t>(lengths[d])), flags(ids.size(), 0);
    std::iota(ids.begin(), ids.end(), 100 * static_cast<int32_t>(d));
    std::fill(flags.end() - std::min<int>(answer, lengths[d]), flags.end(), 1);
    tokens.add_document(ids);
    loss_mask.add_document(flags);
  }
  tokens.finish();
  loss_mask.finish();
  std::vector<int64_t> all(lengths.size());
  std::iota(all.begin(), all.end(), 0);
  return {IndexedDataset::open(folder / "tokens"), IndexedDataset::open(folder / "loss_mask"), all};
}

TEST(ChatSamples, LabelsAreTheNextTokensWithLossOfTheSameConversation) {
  const TempFolder folder;
  const Conversations c = conversations(folder, {3, 5}, 2);
  const ChatSamples samples(c.tokens, c.loss_mask, c.all, 8, ConversationsPerSample::kSeveral, "data.path");
  ASSERT_EQ(samples.num_samples(), 1);
  ASSERT_EQ(samples.length(0), 8);
  std::vector<int64_t> tokens(8), labels(8);
  EXPECT_EQ(samples.read(0, tokens, labels), (std::vector<int64_t>{0, 5}));
  const int64_t no = kIgnoredLabel;
  EXPECT_EQ(tokens, (std::vector<int64_t>{100, 101, 102, 103, 104, 0, 1, 2}));
  EXPECT_EQ(labels, (std::vector<int64_t>{no, no, 103, 104, no, 1, 2, no}));
  EXPECT_EQ(samples.num_labels(0), 4);
}

TEST(ChatSamples, EachConversationComesOnceAndNoneIsSplit) {
  const TempFolder folder;
  std::vector<int> lengths;
  int64_t total = 0;
  for (int i = 0; i < 200; ++i) lengths.push_back(2 + (i * 37) % 59), total += lengths.back();
  const Conversations c = conversations(folder, lengths, 1);
  for (const auto per_sample : {ConversationsPerSample::kOne, ConversationsPerSample::kSeveral}) {
    const ChatSamples samples(c.tokens, c.loss_mask, c.all, 64, per_sample, "data.path");
    std::set<int64_t> seen;
    for (int64_t s = 0; s < samples.num_samples(); ++s) {
      std::vector<int64_t> tokens(static_cast<size_t>(samples.length(s))), labels(tokens.size());
      const auto starts = samples.read(s, tokens, labels);
      ASSERT_LE(samples.length(s), 64);
      for (size_t i = 0; i < starts.size(); ++i) {
        const int64_t first = tokens[static_cast<size_t>(starts[i])], document = first / 100;
        EXPECT_EQ(first % 100, 0);
        EXPECT_TRUE(seen.insert(document).second);
        const int64_t end = i + 1 < starts.size() ? starts[i + 1] : samples.length(s);
        EXPECT_EQ(end - starts[i], lengths[static_cast<size_t>(document)]);
      }
      EXPECT_EQ(std::ranges::count_if(labels, [](int64_t label) { return label != kIgnoredLabel; }),
                samples.num_labels(s));
    }
    EXPECT_EQ(seen.size(), lengths.size());
    EXPECT_EQ(samples.num_tokens(), total);
    const int64_t full = (total + 63) / 64;
    EXPECT_LE(samples.num_samples(), per_sample == ConversationsPerSample::kOne ? 200 : full + 1);
    EXPECT_GE(samples.num_samples(), per_sample == ConversationsPerSample::kOne ? 200 : full);
  }
}

TEST(ChatSamples, LongConversationsAreCutAndSomethingMustBeLeft) {
  const TempFolder folder;
  const Conversations c = conversations(folder, {20, 6}, 3);
  const auto samples = [&](int64_t seq_len) {
    return ChatSamples(c.tokens, c.loss_mask, c.all, seq_len, ConversationsPerSample::kOne, "data.path");
  };
  EXPECT_EQ(samples(18).num_labels(0), 1);
  EXPECT_EQ(samples(18).num_samples(), 2);
  EXPECT_EQ(samples(10).num_samples(), 1);  // the first 10 tokens of the long one have no label
  EXPECT_EQ(samples(10).num_labels(0), 3);
  EXPECT_TRUE(says(message_of<ConfigError>([&] { samples(3); }),
                   {"data.path: none of the first training.seq_len = 3 tokens of 2 conversations carries loss"}));
}

TEST(ChatCorpus, IsCachedByTextAndTemplate) {
  const TempFolder folder;
  const std::vector<std::string> lines = {
      folder.write("a.jsonl",
                   "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": "
                   "\"b\"}]}\n\n{\"prompt\": \"c\", \"completion\": \"de\"}\n")};
  const auto tokenizer = make_byte_tokenizer();
  const auto open = [&](const std::string& jinja) {
    const ChatTemplate chat(folder.write("t.jinja", jinja), "byte");
    return open_corpus({.paths = lines,
                        .format = {.documents = DocumentFormat::kChat},
                        .chat_template = &chat,
                        .work_dir = folder / "work"},
                       *tokenizer);
  };
  const Corpus corpus = open(kMarkup);
  EXPECT_FALSE(corpus.from_cache);
  EXPECT_TRUE(open(kMarkup).from_cache);
  EXPECT_FALSE(open("{% for m in messages %}{{ m.role }}{{ m.content }}{% endfor %}"
                    "{% if add_generation_prompt %}assistant{% endif %}")
                   .from_cache);
  const Documents& documents = corpus.training.front();
  ASSERT_EQ(documents.tokens.num_documents(), 2);
  std::vector<int32_t> ids(static_cast<size_t>(documents.tokens.document_length(1))), flags(ids.size());
  documents.tokens.read(1, 0, ids);
  documents.loss_mask->read(1, 0, flags);
  EXPECT_EQ(ids, (std::vector<int32_t>{'c', 'd', 'e', 256}));
  EXPECT_EQ(flags, (std::vector<int32_t>{0, 1, 1, 1}));
}

}  // namespace
}  // namespace orthant::chat_test
