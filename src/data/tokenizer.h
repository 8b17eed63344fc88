// Text to token ids and back. Two kinds: bytes (built in, no file), and sentencepiece models, whose programs spm_train
// and spm_encode are run as processes of their own and never linked (two protobufs in one process with libtorch crash).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace orthant {

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  /// Ids of each text; no begin or end marks are added. Invalid UTF-8 is kept byte for byte where the model can.
  /// Batches of megabytes are best: a sentencepiece model starts one process a call.
  virtual std::vector<std::vector<int32_t>> encode_many(std::span<const std::string_view> texts) const = 0;
  std::vector<int32_t> encode(std::string_view text) const;
  /// The text of ids; end-of-text and other control ids give nothing. May end inside a UTF-8 character. Throws
  /// DataError on an id outside the vocabulary.
  virtual std::string decode(std::span<const int32_t> tokens) const = 0;
  /// Bytes of text that the id stands for (0 for end-of-text): turns a loss in nats per token into bits per byte.
  virtual int32_t token_bytes(int32_t token) const = 0;

  virtual int32_t vocab_size() const = 0;
  virtual int32_t end_of_text() const = 0;
  /// For people: "byte", or "sentencepiece bpe, jargon.model".
  virtual std::string name() const = 0;
  /// Equal for tokenizers that give equal ids: part of the key of every tokenised file.
  virtual uint64_t fingerprint() const = 0;
  /// What decode(encode(text)) may lose with this model; empty when it is exact.
  virtual std::string caveat() const { return ""; }
  /// Writes what load_saved_tokenizer needs, under the names that Hugging Face uses: tokenizer.json (bytes) or
  /// tokenizer.model (sentencepiece); and for bytes and for models that we trained what AutoTokenizer needs. A foreign
  /// model goes with the tokenizer files that it came with: transformers has no equal of our one line at a time.
  virtual void save(const std::string& directory) const = 0;
};

/// The tokenizer of the key data.tokenizer: "byte", FILE.model, or "train:N": a byte-pair model of N pieces, trained on
/// text_files (plain or gzip) and kept in work_dir under a name made of the text's fingerprint and N, so that it is
/// trained once. Throws ConfigError (unknown spec, N out of range, no text, sentencepiece not installed, with the way
/// to get it) or DataError (damaged model: file and offset).
std::unique_ptr<Tokenizer> load_tokenizer(const std::string& spec, const std::string& work_dir,
                                          std::span<const std::string> text_files);
/// The N of "train:N". Throws ConfigError where it is no number, or out of range.
int64_t pieces_to_train(const std::string& spec);
/// The tokenizer that save() wrote into a directory. Throws ConfigError if there is none.
std::unique_ptr<Tokenizer> load_saved_tokenizer(const std::string& directory);

/// 256 bytes and end-of-text = 256.
std::unique_ptr<Tokenizer> make_byte_tokenizer();

}  // namespace orthant
