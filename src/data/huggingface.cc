#include "data/huggingface.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <tuple>
#include <unordered_map>

#include "base/errors.h"
#include "data/byte_characters.h"
#include "data/utf8.h"

namespace orthant {

namespace {

using Json = nlohmann::json;
using Type = SentencePieceModel::Type;

/// The character of a byte, escaped for JSON.
std::string escaped_character(uint8_t byte) {
  const std::string character = character_of_byte(byte);
  return character == "\"" || character == "\\" ? "\\" + character : character;
}

/// A merge of byte-pair encoding, by piece ids: left followed by right becomes merged.
struct Merge {
  size_t left, right, merged;
};

/// Every pair of pieces that forms a piece, in order of merging. sentencepiece merges the neighbors whose piece has the
/// best score. Among pairs that form the same piece, the pair whose left piece has the lower id comes first.
std::vector<Merge> merges_of(const SentencePieceModel& model) {
  std::unordered_map<std::string_view, size_t> ids;
  for (size_t id = 0; id < model.pieces.size(); ++id)
    if (model.pieces[id].type == Type::kNormal) ids.emplace(model.pieces[id].text, id);
  std::vector<Merge> merges;
  for (const auto& [text, merged] : ids)
    for (size_t middle = utf8_length(text); middle < text.size(); middle += utf8_length(text.substr(middle))) {
      const auto left = ids.find(text.substr(0, middle)), right = ids.find(text.substr(middle));
      if (left != ids.end() && right != ids.end()) merges.push_back({left->second, right->second, merged});
    }
  std::ranges::sort(merges, [&](const Merge& a, const Merge& b) {
    const float score_a = model.pieces[a.merged].score, score_b = model.pieces[b.merged].score;
    return score_a != score_b ? score_a > score_b : std::tie(a.left, a.right) < std::tie(b.left, b.right);
  });
  return merges;
}

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const size_t length = utf8_length(text);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

void write(const std::filesystem::path& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text << std::flush;
  if (!file) throw DataError(path.string() + ": cannot be written; is the disk full?");
}

}  // namespace

std::string byte_tokenizer_json() {
  std::string vocabulary;
  for (int byte = 0; byte < 256; ++byte) {
    vocabulary += fmt::format("\"{}\":{},", escaped_character(static_cast<uint8_t>(byte)), byte);
  }
  return R"({"version":"1.0","truncation":null,"padding":null,"added_tokens":[{"id":256,"content":"<|endoftext|>",)"
         R"("single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true}],"normalizer":null,)"
         R"("pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":false,"use_regex":false},)"
         R"("post_processor":null,)"
         R"("decoder":{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":false,"use_regex":false},)"
         R"("model":{"type":"BPE","dropout":null,"unk_token":null,"continuing_subword_prefix":null,)"
         R"("end_of_word_suffix":null,"fuse_unk":false,"byte_fallback":false,"ignore_merges":false,"vocab":{)" +
         vocabulary + R"("<|endoftext|>":256},"merges":[]}})" + "\n";
}

bool is_plain_bpe(const SentencePieceModel& model) {
  constexpr int32_t kBpe = 2;
  constexpr size_t kLongestPiece = 128;  // bytes; the merges of a piece take memory that grows with the square
  const auto bytes = std::ranges::count(model.pieces, Type::kByte, &SentencePieceModel::Piece::type);
  return model.kind == kBpe && bytes == 256 && !model.has_normalization && !model.add_dummy_prefix &&
         !model.remove_extra_whitespaces && model.escape_whitespaces &&
         std::ranges::all_of(model.pieces, [](const SentencePieceModel::Piece& piece) {
           return piece.type != Type::kUser && piece.type != Type::kUnused && is_utf8(piece.text) &&
                  piece.text.size() <= kLongestPiece;
         });
}

std::string bpe_tokenizer_json(const SentencePieceModel& model, int32_t end_of_text) {
  ORTHANT_CHECK(is_plain_bpe(model));
  Json object = Json::parse(
      R"({"version":"1.0","truncation":null,"padding":null,"added_tokens":[{"single_word":false,"lstrip":false,)"
      R"("rstrip":false,"normalized":false,"special":true}],)"
      R"("normalizer":{"type":"Replace","pattern":{"String":" "},"content":"▁"},)"
      R"("pre_tokenizer":null,"post_processor":null,"decoder":{"type":"Sequence","decoders":[)"
      R"({"type":"Replace","pattern":{"String":"▁"},"content":" "},{"type":"ByteFallback"},{"type":"Fuse"}]},)"
      R"("model":{"type":"BPE","dropout":null,"unk_token":null,"continuing_subword_prefix":null,)"
      R"("end_of_word_suffix":null,"fuse_unk":false,"byte_fallback":true,"ignore_merges":false}})");
  object["added_tokens"][0]["id"] = end_of_text;
  object["added_tokens"][0]["content"] = model.pieces[static_cast<size_t>(end_of_text)].text;
  Json vocabulary = Json::object(), merges = Json::array();
  for (size_t id = 0; id < model.pieces.size(); ++id) vocabulary[model.pieces[id].text] = id;
  for (const Merge& merge : merges_of(model))
    merges.push_back(Json::array({model.pieces[merge.left].text, model.pieces[merge.right].text}));
  object["model"]["vocab"] = std::move(vocabulary);
  object["model"]["merges"] = std::move(merges);
  return object.dump() + "\n";
}

void save_tokenizer_json(const std::string& directory, const std::string& json, const std::string& end_of_text) {
  const Json config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                       {"eos_token", end_of_text},
                       {"clean_up_tokenization_spaces", false}};
  write(std::filesystem::path(directory) / "tokenizer.json", json);
  write(std::filesystem::path(directory) / "tokenizer_config.json", config.dump() + "\n");
}

}  // namespace orthant
