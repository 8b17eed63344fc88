// Tokenizers from tokenizer.json: ids by hand-made vocabularies, decoding, end-of-text, and damaged files. The ids of
// whole vocabularies are compared with those of `tokenizers` by tests/oracle/huggingface_tokenizers.py.
#include "data/huggingface_tokenizer.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "base/errors.h"
#include "data/byte_characters.h"
#include "tests/data/tokenizer_texts.h"
#include "tests/support/says.h"
#include "tests/support/temp_folder.h"

namespace orthant::huggingface_tokenizer_test {
namespace {

using Json = nlohmann::json;
using Ids = std::vector<int32_t>;

// Bytes have their numbers as ids; 256 is "th", 257 "the", 258 " the".
Json byte_level() {
  Json vocabulary = Json::object();
  for (int byte = 0; byte < 256; ++byte) vocabulary[character_of_byte(static_cast<uint8_t>(byte))] = byte;
  vocabulary["th"] = 256, vocabulary["the"] = 257, vocabulary["\u0120the"] = 258;
  return {
      {"added_tokens", Json::parse(R"([{"id": 259, "content": "<|endoftext|>", "special": true, "normalized": false},
                           {"id": 260, "content": "<tool>", "special": false, "normalized": false}])")},
      {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}}},
      {"decoder", {{"type", "ByteLevel"}}},
      {"model",
       {{"type", "BPE"},
        {"vocab", vocabulary},
        {"merges", Json::array({"t h", Json::array({"th", "e"}), Json::array({"\u0120", "the"})})}}}};
}

Json unigram() {
  return {{"added_tokens", Json::parse(R"([{"id": 1, "content": "</s>", "special": true, "normalized": false}])")},
          {"pre_tokenizer", {{"type", "Metaspace"}, {"replacement", "\u2581"}, {"prepend_scheme", "always"}}},
          {"decoder", {{"type", "Metaspace"}, {"replacement", "\u2581"}, {"prepend_scheme", "always"}}},
          {"model",
           {{"type", "Unigram"},
            {"unk_id", 0},
            {"vocab", Json::parse(R"([["<unk>", 0], ["</s>", 0], ["\u2581", -3], ["a", -2], ["b", -2], ["ab", -3],
                                      ["\u2581a", -4.5]])")}}}};
}

std::unique_ptr<Tokenizer> load(const Json& json) {
  const TempFolder folder;
  return load_huggingface_tokenizer(folder.write("tokenizer.json", json.dump()));
}

TEST(HuggingFaceTokenizer, MergesBytePairsInOrder) {
  const auto tokenizer = load(byte_level());
  EXPECT_EQ(tokenizer->vocab_size(), 261);
  EXPECT_EQ(tokenizer->end_of_text(), 259);
  EXPECT_EQ(tokenizer->encode("the then"), (Ids{257, 258, 'n'}));
  EXPECT_EQ(tokenizer->encode("th<|endoftext|>e<tool>"), (Ids{256, 259, 'e', 260}));
  EXPECT_EQ(tokenizer->encode("\xff\x80"), (Ids{255, 128}));
  EXPECT_EQ(tokenizer->encode(""), Ids{});
  EXPECT_EQ(tokenizer->decode(Ids{257, 258, 'n', 259, 260}), "the then<tool>");
  EXPECT_EQ(tokenizer->token_bytes(258), 4);
  EXPECT_EQ(tokenizer->token_bytes(259), 0);
  EXPECT_EQ(tokenizer->caveat(), "");
  EXPECT_EQ(tokenizer->name(), "Hugging Face BPE, tokenizer.json");
  EXPECT_THROW(tokenizer->decode(Ids{261}), DataError);
  for (const std::string& text : hard_texts()) {
    if (text.find("<|endoftext|>") != std::string::npos) continue;
    EXPECT_EQ(tokenizer->decode(tokenizer->encode(text)), text);
  }
}

// A long piece takes the queue of merges, a short one the search through all neighbors.
TEST(HuggingFaceTokenizer, MergesLongPiecesAsShortOnes) {
  Json json = byte_level();
  json["pre_tokenizer"]["use_regex"] = false;
  const auto tokenizer = load(json);
  std::string text = "the";
  Ids ids = {257};
  for (int i = 0; i < 500; ++i) {
    text += " thethe";
    ids.insert(ids.end(), {258, 257});
  }
  EXPECT_EQ(tokenizer->encode(text), ids);
  EXPECT_EQ(tokenizer->encode("the the"), (Ids{257, 258}));
}

TEST(HuggingFaceTokenizer, CutsByTheHighestSumOfScores) {
  const auto tokenizer = load(unigram());
  EXPECT_EQ(tokenizer->encode("ab b"), (Ids{2, 5, 2, 4}));  // "\u2581" and "ab" cost 6, "\u2581a" and "b" 6.5
  EXPECT_EQ(tokenizer->encode("azzb"), (Ids{6, 0, 4}));     // neighboring unknown characters are one token
  EXPECT_EQ(tokenizer->decode(tokenizer->encode("ab b")), "ab b");
  EXPECT_NE(tokenizer->caveat().find("does not have a token for every byte"), std::string::npos);
}

// A trained vocabulary may have a piece twice, for example "<unk>" if the text has it. The ids are those of version
// 0.23 of `tokenizers`: of the last one, also for an added token.
TEST(HuggingFaceTokenizer, APieceThatIsThereTwiceHasItsLastId) {
  Json json = unigram();
  json["model"]["vocab"] = Json::parse(R"([["<unk>", 0], ["\u2581", -2], ["a", -1], ["b", -2], ["ab", -2.5],
                                           ["ab", -9], ["<unk>", -5], ["a", -1.5]])");
  json["added_tokens"] = Json::parse(R"([{"id": 6, "content": "<unk>", "special": true, "normalized": false},
                                         {"id": 8, "content": "</s>", "special": true, "normalized": false}])");
  const auto tokenizer = load(json);
  EXPECT_EQ(tokenizer->vocab_size(), 9);
  EXPECT_EQ(tokenizer->encode("ab aab b"), (Ids{1, 7, 3, 1, 7, 7, 3, 1, 3}));
  EXPECT_EQ(tokenizer->encode("x <unk> a"), (Ids{1, 0, 1, 6, 1, 7}));
  json["added_tokens"][0]["id"] = 0;
  EXPECT_NE(message_of<DataError>([&] { load(json); }).find("must have the id 6"), std::string::npos);
}

// Gemma's runs of spaces are added tokens that decode to spaces. Marks of a text in NFC are sorted in linear time.
TEST(HuggingFaceTokenizer, DecodesAddedTokensAndNormalizes) {
  Json json = Json::parse(R"({"added_tokens": [{"id": 2, "content": "\u2581\u2581", "normalized": false},
                                               {"id": 3, "content": "</s>", "special": true, "normalized": false}],
      "normalizer": {"type": "Sequence", "normalizers": [
          {"type": "NFC"}, {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]},
      "decoder": {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
      "model": {"type": "BPE", "vocab": {"\u00e9": 0, "\u2581": 1, "\u2581\u2581": 2, "</s>": 3}, "merges": []}})");
  const auto tokenizer = load(json);
  EXPECT_EQ(tokenizer->encode("e\u0301 \u2581\u2581"), (Ids{0, 1, 2}));
  EXPECT_EQ(tokenizer->decode(Ids{0, 1, 2}), "\u00e9   ");
  EXPECT_EQ(tokenizer->token_bytes(2), 2);
  std::string marks = "e";
  for (int i = 0; i < 100000; ++i) marks += "\u0301\u0316";  // 200,000 marks out of order
  EXPECT_EQ(tokenizer->encode(marks), Ids{0});  // the first mark that composes is U+0301; the rest has no tokens
}

TEST(HuggingFaceTokenizer, PutsASpaceBeforeTheFirstPieceOnly) {
  Json json = unigram();
  json["pre_tokenizer"] = Json::parse(R"({"type": "Sequence", "pretokenizers": [
      {"type": "WhitespaceSplit"}, {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first"}]})");
  EXPECT_EQ(load(json)->encode("a b"), (Ids{6, 4}));
  EXPECT_EQ(load(json)->encode(" a b"), (Ids{3, 4}));
}

TEST(HuggingFaceTokenizer, EncodesManyTextsAsOneByOne) {
  const auto tokenizer = load(byte_level());
  std::mt19937 random(1);
  std::vector<std::string> texts;
  for (int i = 0; i < 300; ++i) {
    std::string& text = texts.emplace_back();
    for (size_t length = random() % 200; text.size() < length;) text += " the\xc3\xa9\n!"[random() % 8];
  }
  const std::vector<std::string_view> views(texts.begin(), texts.end());
  const auto all = tokenizer->encode_many(views);
  for (size_t i = 0; i < texts.size(); ++i) {
    EXPECT_EQ(all[i], tokenizer->encode(texts[i]));
    EXPECT_EQ(tokenizer->decode(all[i]), texts[i]);
  }
}

TEST(HuggingFaceTokenizer, FindsItsEndOfText) {
  const TempFolder folder;
  Json json = byte_level();
  const std::string path = folder.write("tokenizer.json", json.dump());
  const auto end_of_text = [&] { return load_huggingface_tokenizer(path)->end_of_text(); };
  EXPECT_EQ(end_of_text(), 259);  // by its name
  folder.write("generation_config.json", R"({"eos_token_id": 7})");
  EXPECT_EQ(end_of_text(), 7);
  folder.write("config.json", R"({"eos_token_id": [8, 9]})");
  EXPECT_EQ(end_of_text(), 8);
  folder.write("tokenizer_config.json", R"({"eos_token": {"content": "<tool>"}})");
  EXPECT_EQ(end_of_text(), 260);
  folder.write("tokenizer_config.json", R"({"eos_token": "<end>"})");
  EXPECT_NE(message_of<DataError>(end_of_text).find("eos_token \"<end>\" is not a token of"), std::string::npos);
  folder.write("tokenizer_config.json", "{}");
  folder.write("config.json", R"({"eos_token_id": 900})");
  EXPECT_NE(message_of<DataError>(end_of_text).find("has id 900, but"), std::string::npos);
}

TEST(HuggingFaceTokenizer, ReadsBeginTokens) {
  EXPECT_EQ(load(byte_level())->begin_tokens(), Ids{});
  Json json = byte_level();
  json["post_processor"] = Json::parse(R"({"type": "Sequence", "processors": [{"type": "ByteLevel"}, {
      "type": "TemplateProcessing",
      "single": [{"SpecialToken": {"id": "<b>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                 {"SpecialToken": {"id": "<e>", "type_id": 0}}],
      "special_tokens": {"<b>": {"id": "<b>", "ids": [260], "tokens": ["<tool>"]},
                         "<e>": {"id": "<e>", "ids": [259], "tokens": ["<|endoftext|>"]}}}]})");
  EXPECT_EQ(load(json)->begin_tokens(), Ids{260});
  json["post_processor"]["processors"][1]["special_tokens"]["<b>"]["ids"] = {261};
  EXPECT_NE(message_of<DataError>([&] { load(json); }).find("token 261 is outside the vocabulary"), std::string::npos);
}

TEST(HuggingFaceTokenizer, IsSavedWithItsCompanionFiles) {
  const TempFolder folder, saved;
  Json json = byte_level();
  const std::string path = folder.write("tokenizer.json", json.dump());
  folder.write("tokenizer_config.json", R"({"eos_token": "<tool>"})");
  const auto tokenizer = load_tokenizer(path, "", {});
  tokenizer->save(saved.path());
  EXPECT_EQ(slurp(saved / "tokenizer_config.json"), R"({"eos_token": "<tool>"})");
  const auto loaded = load_saved_tokenizer(saved.path());
  EXPECT_EQ(loaded->fingerprint(), tokenizer->fingerprint());
  EXPECT_EQ(loaded->end_of_text(), 260);
  // The end-of-text token of config.json is written to tokenizer_config.json.
  folder.write("tokenizer_config.json", R"({"model_max_length": 64})");
  folder.write("config.json", R"({"eos_token_id": 260})");
  load_tokenizer(path, "", {})->save(saved.path());
  EXPECT_EQ(load_saved_tokenizer(saved.path())->end_of_text(), 260);
  EXPECT_NE(slurp(saved / "tokenizer_config.json").find("model_max_length"), std::string::npos);
}

TEST(HuggingFaceTokenizer, RefusesWhatItDoesNotKnow) {
  const auto refusal = [](const char* pointer, const Json& value, Json json = byte_level()) {
    json[Json::json_pointer(pointer)] = value;
    return message_of<DataError>([&] { load(json); });
  };
  const auto expect = [](const std::string& message, const char* part) {
    EXPECT_NE(message.find(part), std::string::npos) << message;
  };
  expect(refusal("/model/type", "WordPiece"),
         "model.type = \"WordPiece\" is not supported; Orthant reads BPE and Unigram");
  expect(refusal("/model/merges/0", "t h e"), "merge 0 must be");
  expect(refusal("/model/merges/1", Json::array({"th", "x y"})), "merge 1: \"x y\" is not in the vocabulary");
  expect(refusal("/model/vocab/th", 255), "must have different ids, but two have 255");
  expect(refusal("/model/vocab/th", 268435455), "has id 268435455, but there are 259 tokens");
  expect(refusal("/model/vocab/th", -1), "must be a number from 0");
  expect(refusal("/model/dropout", 0.1), "model.dropout = 0.1 is not supported");
  expect(refusal("/model/unk_token", "<unk>"), "the unknown token \"<unk>\" is not in the vocabulary");
  expect(refusal("/normalizer", {{"type", "Lowercase"}}), "the normalizer \"Lowercase\" is not supported");
  expect(refusal("/normalizer", {{"type", "Precompiled"}, {"precompiled_charsmap", "?"}}), "is not base64");
  expect(refusal("/normalizer", {{"type", "Precompiled"}, {"precompiled_charsmap", "/////w=="}}), "is damaged");
  expect(refusal("/pre_tokenizer", {{"type", "BertPreTokenizer"}}), "\"BertPreTokenizer\" is not supported");
  const auto split = [&](const char* expression) {
    return refusal("/pre_tokenizer",
                   {{"type", "Split"}, {"pattern", {{"Regex", expression}}}, {"behavior", "Isolated"}});
  };
  expect(split("(a"), "the expression \"(a\" cannot be read at offset 2");
  for (const char* part : {"\\w", "\\Q", "&&", "}+", "{,", "(?s:", "(*"}) {
    const std::string expression = fmt::format("{}b[a{}", part, std::string(part) == "&&" ? "&&b]" : "]");
    expect(split(expression.c_str()), fmt::format("contains {}, whose meaning differs", part).c_str());
  }
  expect(split("[a[bc]]"), "contains [ inside a class, whose meaning differs");
  expect(split("(?i:st)"), "contains (?i) with \"st\", whose meaning differs");
  expect(split("\\pL+"), "contains \\p without {NAME}, whose meaning differs");
  expect(split("b*"), "must not match the empty text");
  expect(refusal("/decoder", {{"type", "WordPiece"}}), "the decoder \"WordPiece\" is not supported");
  expect(refusal("/added_tokens/0/id", 1e9), "added token 0 needs an id");
  expect(refusal("/added_tokens/0/id", 100000000),
         "must have the id 259, which `tokenizers` gives it, and has 100000000");
  expect(refusal("/model/unk_id", 7, unigram()), "model.unk_id = 7 must be below the 7 pieces");
  expect(refusal("/model/vocab/0", Json::array({"<unk>"}), unigram()), "piece 0 must be [\"text\", score]");
  expect(refusal("/pre_tokenizer", {{"type", "ByteLevel"}}, unigram()),
         "a Unigram model with the pre-tokenizer ByteLevel");
  expect(refusal("/decoder/replacement", "", unigram()), "the replacement of Metaspace must not be empty");
  Json few_bytes = byte_level();
  few_bytes["model"]["byte_fallback"] = true;
  few_bytes["model"]["vocab"]["<0x41>"] = 259;
  few_bytes["added_tokens"] = Json::array();
  expect(message_of<DataError>([&] { load(few_bytes); }),
         "must have all 256 bytes from <0x00> to <0xFF>, or none, and has 1");
  Json nameless = byte_level();
  nameless["added_tokens"] = Json::array();
  expect(message_of<ConfigError>([&] { load(nameless); }), "must have an end-of-text token");
  expect(message_of<ConfigError>([] { load_huggingface_tokenizer("/nowhere/tokenizer.json"); }), "there is no such");
}

// Steps that make long texts of short ones are refused, also if each step alone is harmless.
TEST(HuggingFaceTokenizer, BoundsTheTextThatItsStepsMake) {
  const Json doubles = {{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", "aa"}};
  const auto sequence = [&](const char* name, size_t steps) {
    return Json{{"type", "Sequence"}, {name, std::vector<Json>(steps, doubles)}};
  };
  const auto message = [](const Json& json, const std::string& text) {
    return message_of<DataError>([&] { load(json)->encode(text); });
  };
  Json json = byte_level();
  json["normalizer"] = sequence("normalizers", 6);
  EXPECT_EQ(load(json)->encode("a").size(), 64u);
  json["normalizer"] = sequence("normalizers", 9);
  EXPECT_TRUE(
      says(message(json, "a"), {"the normalizer must make at most 256 + 64 x 1 = 320 bytes of a text of 1 byte, "
                                "and makes more; remove steps that lengthen text"}));
  json["normalizer"] = sequence("normalizers", 65);
  EXPECT_TRUE(says(message(json, ""), {"the normalizer must have at most 64 steps; join or remove steps"}));
  json = byte_level();
  json["decoder"] = sequence("decoders", 9);
  EXPECT_TRUE(says(message(json, ""), {"the decoder must make at most 256 + 64 x 1 = 320 bytes"}));
  json["decoder"] = sequence("decoders", 65);
  EXPECT_TRUE(says(message(json, ""), {"the decoder must have at most 64 steps"}));
  json = unigram();
  json["pre_tokenizer"]["replacement"] = std::string(400, 'x');
  EXPECT_TRUE(says(message(json, " "), {"the pre-tokenizer must make at most 256 + 64 x 1 = 320 bytes"}));
  json = byte_level();
  json["post_processor"] = Json::parse(R"({"type": "TemplateProcessing", "special_tokens": {"A": {"ids": []}}})");
  json["post_processor"]["single"] = std::vector<Json>(33, Json::parse(R"({"SpecialToken": {"id": "A"}})"));
  json["post_processor"]["special_tokens"]["A"]["ids"] = std::vector<int>(32, 7);
  EXPECT_TRUE(says(message(json, ""), {"post_processor must put at most 1024 tokens before a text"}));
}

// A damaged file is refused, or gives a tokenizer that encodes.
TEST(HuggingFaceTokenizer, SurvivesDamagedFiles) {
  std::mt19937 random(3);
  int loaded = 0;
  for (int i = 0; i < 1000; ++i) {
    std::string text = (i % 2 == 0 ? byte_level() : unigram()).dump();
    for (int changes = 1 + static_cast<int>(random() % 2); changes > 0; --changes) {
      const size_t at = random() % text.size();
      switch (random() % 4) {
        case 0:
          text[at] = static_cast<char>(random() % 256);
          break;
        case 1:
          text[at] = "0123456789abcdefghijklmnopqrstuvwxyz"[random() % 36];
          break;
        case 2:
          text.erase(at, random() % 20);
          break;
        default:
          text.insert(at, text.substr(random() % text.size(), random() % 20));
      }
    }
    const TempFolder folder;
    try {
      const auto tokenizer = load_huggingface_tokenizer(folder.write("tokenizer.json", text));
      tokenizer->encode("the ab <|endoftext|>\xff\u2581b");
      ++loaded;
    } catch (const Error&) {
    }
  }
  EXPECT_GT(loaded, 30);
  EXPECT_LT(loaded, 900);
}

}  // namespace
}  // namespace orthant::huggingface_tokenizer_test
