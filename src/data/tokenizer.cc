#include "data/tokenizer.h"

#include <charconv>
#include <filesystem>

#include "base/errors.h"
#include "base/mapped_file.h"
#include "data/huggingface.h"
#include "data/huggingface_tokenizer.h"
#include "data/sentencepiece.h"

namespace orthant {

namespace fs = std::filesystem;

namespace {

constexpr int32_t kByteEndOfText = 256;

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
    save_tokenizer_json(directory, byte_tokenizer_json(), "<|endoftext|>");
  }
};

std::unique_ptr<Tokenizer> load_json(const fs::path& path) {
  if (read_file(path.string()) == byte_tokenizer_json()) return make_byte_tokenizer();
  return load_huggingface_tokenizer(path);
}

}  // namespace

int64_t pieces_to_train(const std::string& spec) {
  const char *begin = spec.data() + std::string_view("train:").size(), *end = spec.data() + spec.size();
  int64_t pieces = 0;
  const auto [last, error] = std::from_chars(begin, end, pieces);
  if (error != std::errc() || last != end || pieces < 260 || pieces > 1000000)
    throw ConfigError(
        fmt::format("data.tokenizer = \"{}\": expected train:N with N from 260 (the bytes alone take 256) "
                    "to 1000000; set data.tokenizer to \"train:8000\", or to \"byte\" for a short text",
                    spec));
  return pieces;
}

std::vector<int32_t> Tokenizer::encode(std::string_view text) const {
  return std::move(encode_many(std::span(&text, 1)).front());
}

std::unique_ptr<Tokenizer> make_byte_tokenizer() { return std::make_unique<ByteTokenizer>(); }

std::unique_ptr<Tokenizer> load_tokenizer(const std::string& spec, const std::string& work_dir,
                                          std::span<const std::string> text_files, const TextFormat& format,
                                          FileReadings* readings) {
  if (spec == "byte") return make_byte_tokenizer();
  if (spec.starts_with("train:")) {
    const int64_t pieces = pieces_to_train(spec);
    if (text_files.empty())
      throw ConfigError(
          fmt::format("data.tokenizer = \"{}\" needs text files in data.path to train on; name the model "
                      "with which the tokens were made: FILE.model",
                      spec));
    FileReadings own;
    return load_sentencepiece(
        train_sentencepiece(pieces, work_dir, text_files, format, readings != nullptr ? *readings : own));
  }
  if (!fs::is_regular_file(spec))
    throw ConfigError(fmt::format(
        "data.tokenizer = \"{}\": {}; use \"byte\", \"train:8000\", or the path of a tokenizer.json or of a "
        "sentencepiece model FILE.model",
        spec, fs::exists(spec) ? "it is not a regular file" : "there is no such file"));
  if (spec.ends_with(".json")) return load_json(spec);
  return load_sentencepiece(spec);
}

std::unique_ptr<Tokenizer> load_saved_tokenizer(const std::string& directory) {
  const fs::path model = fs::path(directory) / "tokenizer.model", json = fs::path(directory) / "tokenizer.json";
  if (fs::is_regular_file(json)) return load_json(json);
  if (!fs::is_regular_file(model))
    throw ConfigError(directory + ": this directory has no tokenizer (neither tokenizer.json nor tokenizer.model)");
  return load_sentencepiece(model);
}

}  // namespace orthant
