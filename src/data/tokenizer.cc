#include "data/tokenizer.h"

#include <array>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/errors.h"
#include "data/sentencepiece.h"

namespace orthant {

namespace fs = std::filesystem;

namespace {

constexpr int32_t kByteEndOfText = 256;

/// The character that byte-level vocabularies of Hugging Face write for a byte: itself where it is printable Latin-1,
/// otherwise the next free one from U+0100 on.
std::string byte_character(int byte) {
  const auto printable = [](int b) { return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174; };
  int code = byte;
  if (!printable(byte)) {
    code = 256;
    for (int b = 0; b < byte; ++b) code += !printable(b);
  }
  if (code == '"' || code == '\\') return std::string("\\") + static_cast<char>(code);
  if (code < 0x80) return std::string(1, static_cast<char>(code));
  return {static_cast<char>(0xc0 | code >> 6), static_cast<char>(0x80 | (code & 0x3f))};
}

/// The byte tokenizer in Hugging Face's form: byte-level BPE without a single merge.
std::string byte_tokenizer_json() {
  std::string vocabulary;
  for (int byte = 0; byte < 256; ++byte) vocabulary += fmt::format("\"{}\":{},", byte_character(byte), byte);
  return R"({"version":"1.0","truncation":null,"padding":null,"added_tokens":[{"id":256,"content":"<|endoftext|>",)"
         R"("single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true}],"normalizer":null,)"
         R"("pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":false,"use_regex":false},)"
         R"("post_processor":null,)"
         R"("decoder":{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":false,"use_regex":false},)"
         R"("model":{"type":"BPE","dropout":null,"unk_token":null,"continuing_subword_prefix":null,)"
         R"("end_of_word_suffix":null,"fuse_unk":false,"byte_fallback":false,"ignore_merges":false,"vocab":{)" +
         vocabulary + R"("<|endoftext|>":256},"merges":[]}})" + "\n";
}

std::string read_all(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return std::move(text).str();
}

void write_all(const fs::path& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text << std::flush;
  if (!file) throw DataError(path.string() + ": cannot write");
}

class ByteTokenizer : public Tokenizer {
 public:
  std::vector<std::vector<int32_t>> encode_many(std::span<const std::string_view> texts) const override {
    std::vector<std::vector<int32_t>> tokens;
    for (std::string_view text : texts) {
      const auto* bytes = reinterpret_cast<const uint8_t*>(text.data());
      tokens.emplace_back(bytes, bytes + text.size());
    }
    return tokens;
  }

  std::string decode(std::span<const int32_t> tokens) const override {
    std::string text;
    for (int32_t token : tokens)
      if (token_bytes(token) == 1) text += static_cast<char>(token);
    return text;
  }

  int32_t token_bytes(int32_t token) const override {
    if (token < 0 || token >= vocab_size())
      throw DataError(fmt::format("token {} is outside the vocabulary of 257", token));
    return token < kByteEndOfText;
  }

  int32_t vocab_size() const override { return kByteEndOfText + 1; }
  int32_t end_of_text() const override { return kByteEndOfText; }
  std::string name() const override { return "byte"; }
  uint64_t fingerprint() const override { return 0x62797465; }

  void save(const std::string& directory) const override {
    write_all(fs::path(directory) / "tokenizer.json", byte_tokenizer_json());
    write_all(fs::path(directory) / "tokenizer_config.json",
              "{\"tokenizer_class\": \"PreTrainedTokenizerFast\", \"eos_token\": \"<|endoftext|>\", "
              "\"clean_up_tokenization_spaces\": false}\n");
  }
};

int64_t pieces_to_train(const std::string& spec) {
  const char *begin = spec.data() + std::string_view("train:").size(), *end = spec.data() + spec.size();
  int64_t pieces = 0;
  const auto [last, error] = std::from_chars(begin, end, pieces);
  if (error != std::errc() || last != end || pieces < 260 || pieces > 1000000)
    throw ConfigError(
        fmt::format("data.tokenizer = \"{}\": expected train:N with N from 260 (the bytes alone take 256) "
                    "to 1000000; try \"train:8000\"",
                    spec));
  return pieces;
}

}  // namespace

std::vector<int32_t> Tokenizer::encode(std::string_view text) const {
  return std::move(encode_many(std::span(&text, 1)).front());
}

std::unique_ptr<Tokenizer> make_byte_tokenizer() { return std::make_unique<ByteTokenizer>(); }

std::unique_ptr<Tokenizer> load_tokenizer(const std::string& spec, const std::string& work_dir,
                                          std::span<const std::string> text_files) {
  if (spec == "byte") return make_byte_tokenizer();
  if (spec.starts_with("train:")) {
    const int64_t pieces = pieces_to_train(spec);
    if (text_files.empty())
      throw ConfigError(
          fmt::format("data.tokenizer = \"{}\" needs text files in data.path to train on; name the model "
                      "with which the tokens were made: FILE.model",
                      spec));
    return load_sentencepiece(train_sentencepiece(pieces, work_dir, text_files));
  }
  if (!fs::is_regular_file(spec))
    throw ConfigError(
        fmt::format("data.tokenizer = \"{}\": there is no such file; use \"byte\", \"train:8000\", or the "
                    "path of a sentencepiece model FILE.model",
                    spec));
  return load_sentencepiece(spec);
}

std::unique_ptr<Tokenizer> load_saved_tokenizer(const std::string& directory) {
  const fs::path model = fs::path(directory) / "tokenizer.model", json = fs::path(directory) / "tokenizer.json";
  if (fs::is_regular_file(model)) return load_sentencepiece(model);
  if (!fs::is_regular_file(json))
    throw ConfigError(directory + ": no tokenizer there (neither tokenizer.model nor tokenizer.json)");
  if (read_all(json) != byte_tokenizer_json())
    throw ConfigError(json.string() +
                      ": only the byte tokenizer's tokenizer.json can be read; other models need a "
                      "sentencepiece tokenizer.model beside it");
  return make_byte_tokenizer();
}

}  // namespace orthant
