// Converts text to token ids and back. There are three kinds of tokenizers: bytes (built in), Hugging Face's
// tokenizer.json, and sentencepiece models.
// The programs spm_train and spm_encode run as separate processes and are never linked, because two copies of protobuf
// in one process with libtorch crash.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/file_readings.h"
#include "data/text_file.h"

namespace orthant {

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  /// The ids of each text, without begin or end marks. Invalid UTF-8 is preserved byte for byte if the model can
  /// represent it. A sentencepiece model starts one process per call, so pass megabytes at a time.
  virtual std::vector<std::vector<int32_t>> encode_many(std::span<const std::string_view> texts) const = 0;
  std::vector<int32_t> encode(std::string_view text) const;
  /// The text of ids. End-of-text and other control ids yield no text. The text may end inside a UTF-8 character.
  /// Throws DataError for an id outside the vocabulary.
  virtual std::string decode(std::span<const int32_t> tokens) const = 0;
  /// Number of bytes of text that the id represents (0 for end-of-text); converts a loss in nats per token to bits per
  /// byte.
  virtual int32_t token_bytes(int32_t token) const = 0;

  virtual int32_t vocab_size() const = 0;
  virtual int32_t end_of_text() const = 0;
  /// Ids with which each document and each prompt begins, such as that of <|begin_of_text|>; empty if there are none.
  virtual std::vector<int32_t> begin_tokens() const { return {}; }
  /// Display name: "byte", "Hugging Face BPE, tokenizer.json" or "sentencepiece bpe, jargon.model".
  virtual std::string name() const = 0;
  /// Equal for tokenizers that give equal ids; a part of the cache key of tokenized files.
  virtual uint64_t fingerprint() const = 0;
  /// Describes how decode(encode(text)) may differ from text; empty if it is exact.
  virtual std::string caveat() const { return ""; }
  /// Writes the files for load_saved_tokenizer() under Hugging Face's names: tokenizer.json or, for sentencepiece,
  /// tokenizer.model. Also writes the other files for AutoTokenizer, except for a sentencepiece model that was not
  /// trained here: transformers cannot encode it line by line as Orthant does.
  virtual void save(const std::string& directory) const = 0;
};

/// The tokenizer of the key data.tokenizer: "byte", FILE.json, FILE.model or "train:N". "train:N" trains a byte-pair
/// model of N pieces on text_files of this format. It does so once: work_dir caches the model under a name made of N
/// and the text's fingerprint. Throws ConfigError for an unknown spec, N out of range, or no text; also without
/// sentencepiece, with the way to install it. Throws DataError with file and offset for a damaged model.
std::unique_ptr<Tokenizer> load_tokenizer(const std::string& spec, const std::string& work_dir,
                                          std::span<const std::string> text_files, const TextFormat& format = {},
                                          FileReadings* readings = nullptr);
/// The N of "train:N". Throws ConfigError if it is not a number or out of range.
int64_t pieces_to_train(const std::string& spec);
/// The tokenizer of a model's directory: its tokenizer.json, or else its tokenizer.model. Throws ConfigError without
/// one.
std::unique_ptr<Tokenizer> load_saved_tokenizer(const std::string& directory);

/// The byte tokenizer: ids 0..255 are bytes, 256 is end-of-text.
std::unique_ptr<Tokenizer> make_byte_tokenizer();

}  // namespace orthant
