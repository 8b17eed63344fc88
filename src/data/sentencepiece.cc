// A tokenizer on a sentencepiece model. spm_encode encodes line by line; newlines and bytes that it would change are
// encoded here.
#include "data/sentencepiece.h"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/errors.h"
#include "base/hash.h"
#include "base/mapped_file.h"
#include "base/text.h"
#include "data/huggingface.h"
#include "data/program.h"
#include "data/sentencepiece_model.h"
#include "data/utf8.h"

namespace orthant {

namespace {

using Type = SentencePieceModel::Type;
constexpr std::string_view kSpaceMark = "\xe2\x96\x81";  // U+2581 represents a space inside pieces
constexpr const char* kInstall = "install sentencepiece's programs: apt-get install sentencepiece";

std::string replace_space_marks(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const bool mark = text.substr(at).starts_with(kSpaceMark);
    out += mark ? ' ' : text[at];
    at += mark ? kSpaceMark.size() : 1;
  }
  return out;
}

class SentencePieceTokenizer : public Tokenizer {
 public:
  SentencePieceTokenizer(const std::string& path, std::string bytes);

  std::vector<std::vector<int32_t>> encode_many(std::span<const std::string_view> texts) const override;
  std::string decode(std::span<const int32_t> tokens) const override;
  int32_t token_bytes(int32_t token) const override { return static_cast<int32_t>(surface(token).size()); }
  int32_t vocab_size() const override { return static_cast<int32_t>(model_.pieces.size()); }
  int32_t end_of_text() const override { return end_of_text_; }
  std::string name() const override;
  uint64_t fingerprint() const override;
  std::string caveat() const override;
  void save(const std::string& directory) const override;

 private:
  /// A part of a text: characters for spm_encode, or one byte or newline with its own id.
  struct Segment {
    std::string_view text;
    int32_t id = -1;
  };
  const std::string& surface(int32_t token) const;
  bool is_exact() const;
  void set_surfaces();
  int32_t find_end_of_text() const;
  std::vector<Segment> segments(std::string_view text) const;

  std::string path_, bytes_;
  SentencePieceModel model_;
  std::vector<std::string> surfaces_;
  std::array<int32_t, 256> byte_ids_;
  int32_t newline_ = -1, end_of_text_ = -1;  // -1: the model has no newline
  bool has_bytes_ = false;
};

SentencePieceTokenizer::SentencePieceTokenizer(const std::string& path, std::string bytes)
    : path_(std::filesystem::absolute(path)),
      bytes_(std::move(bytes)),
      model_(parse_sentencepiece_model(bytes_, path)) {
  byte_ids_.fill(-1);
  set_surfaces();
  has_bytes_ = std::ranges::find(byte_ids_, -1) == byte_ids_.end();
  if (newline_ < 0) newline_ = byte_ids_['\n'];
  end_of_text_ = find_end_of_text();
}

void SentencePieceTokenizer::set_surfaces() {
  for (const SentencePieceModel::Piece& piece : model_.pieces) {
    const auto id = static_cast<int32_t>(surfaces_.size());
    std::string surface = replace_space_marks(piece.text);
    if (piece.type == Type::kControl) surface.clear();
    if (piece.type == Type::kUnknown) surface = model_.unk_surface;
    if (piece.type == Type::kByte) {
      uint8_t value = 0;
      const char* digits = piece.text.data() + 3;  // <0x0A>
      if (piece.text.size() != 6 || !piece.text.starts_with("<0x") ||
          std::from_chars(digits, digits + 2, value, 16).ptr != digits + 2)
        throw DataError(
            fmt::format("{}: piece {} is a byte named \"{}\", expected a form like <0x0A>", path_, id, piece.text));
      surface.assign(1, static_cast<char>(value));
      byte_ids_[value] = id;
    }
    if (surface == "\n" && piece.type != Type::kByte) newline_ = id;
    surfaces_.push_back(std::move(surface));
  }
}

int32_t SentencePieceTokenizer::find_end_of_text() const {
  if (model_.eos_id >= 0 && model_.eos_id < vocab_size()) return model_.eos_id;
  for (int32_t id = 0; id < vocab_size(); ++id)
    if (const std::string& text = model_.pieces[id].text; text == "<|endoftext|>" || text == "</s>" || text == "<eos>")
      return id;
  throw ConfigError(path_ + ": the model has no end-of-text piece; train it with --eos_id=2");
}

const std::string& SentencePieceTokenizer::surface(int32_t token) const {
  if (token < 0 || token >= vocab_size())
    throw DataError(fmt::format("{}: token {} is outside the vocabulary of {}", path_, token, vocab_size()));
  return surfaces_[token];
}

bool SentencePieceTokenizer::is_exact() const {
  return has_bytes_ && !model_.has_normalization && !model_.add_dummy_prefix && !model_.remove_extra_whitespaces &&
         model_.escape_whitespaces;
}

std::vector<SentencePieceTokenizer::Segment> SentencePieceTokenizer::segments(std::string_view text) const {
  std::vector<Segment> out;
  size_t start = 0;
  const auto add_segment = [&](size_t at, size_t length) {
    if (at > start) out.push_back({text.substr(start, at - start)});
    start = at + length;
  };
  const bool exact = is_exact();
  for (size_t at = 0, length = 0; at < text.size(); at += std::max<size_t>(length, 1)) {
    length = utf8_length(text.substr(at));
    if (text[at] == '\n') {
      add_segment(at, 1);
      if (newline_ >= 0) out.push_back({text.substr(at, 1), newline_});
    } else if (exact && (length == 0 || text.substr(at).starts_with(kSpaceMark))) {
      // spm_encode would replace these by U+FFFD and a space.
      const std::string_view bytes = text.substr(at, std::max<size_t>(length, 1));
      add_segment(at, bytes.size());
      for (size_t i = 0; i < bytes.size(); ++i)
        out.push_back({bytes.substr(i, 1), byte_ids_[static_cast<uint8_t>(bytes[i])]});
    }
  }
  add_segment(text.size(), 0);
  return out;
}

std::vector<std::vector<int32_t>> SentencePieceTokenizer::encode_many(std::span<const std::string_view> texts) const {
  std::vector<std::vector<Segment>> parts;
  std::string lines;
  for (std::string_view text : texts) {
    parts.push_back(segments(text));
    for (const Segment& part : parts.back())
      if (part.id < 0) lines.append(part.text) += '\n';
  }
  std::string output;
  if (!lines.empty()) {
    ProgramResult result = run_program({"spm_encode", "--model=" + path_, "--output_format=id"}, lines, "", kInstall);
    if (result.exit_code != 0)
      throw DataError(
          fmt::format("{}: spm_encode failed with exit code {}: {}", path_, result.exit_code, trim(result.errors)));
    output = std::move(result.output);
  }
  const auto wrong = [&] { return DataError(path_ + ": the output of spm_encode cannot be parsed"); };
  std::vector<std::vector<int32_t>> tokens(texts.size());
  const char *at = output.data(), *const end = at + output.size();
  for (size_t i = 0; i < texts.size(); ++i)
    for (const Segment& part : parts[i]) {
      if (part.id >= 0) {
        tokens[i].push_back(part.id);
        continue;
      }
      for (; at != end && *at != '\n'; at += *at == ' ') {
        int32_t id = 0;
        const auto [next, error] = std::from_chars(at, end, id);
        if (error != std::errc() || id < 0 || id >= vocab_size() || next == end) throw wrong();
        tokens[i].push_back(id);
        at = next;
      }
      if (at++ == end) throw wrong();
    }
  if (at != end) throw wrong();
  return tokens;
}

std::string SentencePieceTokenizer::decode(std::span<const int32_t> tokens) const {
  std::string text;
  bool line_start = true;  // encoding inserts the model's dummy space here
  for (int32_t token : tokens) {
    std::string_view piece = surface(token);
    if (model_.add_dummy_prefix && line_start && piece.starts_with(' ')) piece.remove_prefix(1);
    text += piece;
    line_start = token == newline_ || (line_start && model_.pieces[token].type == Type::kControl);
  }
  return text;
}

std::string SentencePieceTokenizer::name() const {
  static constexpr std::array<const char*, 5> kKinds = {"?", "unigram", "bpe", "word", "char"};
  const bool known = model_.kind >= 1 && model_.kind <= 4;
  return fmt::format("sentencepiece {}, {}", kKinds[known ? model_.kind : 0],
                     std::filesystem::path(path_).filename().string());
}

uint64_t SentencePieceTokenizer::fingerprint() const {
  // Hashes the pieces instead of the file, which also contains the paths of its training text.
  Hasher hasher;
  for (const SentencePieceModel::Piece& piece : model_.pieces) {
    hasher.add_field(piece.text);
    hasher.add_field(uint64_t{std::bit_cast<uint32_t>(piece.score)} << 8 | static_cast<uint64_t>(piece.type));
  }
  for (int32_t value : {model_.kind, end_of_text_, model_.unk_id, int32_t{model_.byte_fallback},
                        int32_t{model_.has_normalization}, int32_t{model_.add_dummy_prefix},
                        int32_t{model_.remove_extra_whitespaces}, int32_t{model_.whitespace_as_suffix}})
    hasher.add_field(static_cast<uint64_t>(value));
  return hasher.digest();
}

std::string SentencePieceTokenizer::caveat() const {
  if (is_exact()) return "";
  std::vector<std::string> losses;
  if (model_.has_normalization) losses.push_back("replaces characters by a normalization table");
  if (model_.remove_extra_whitespaces) losses.push_back("drops extra spaces");
  if (!has_bytes_) losses.push_back("has no bytes for unknown characters");
  if (newline_ < 0) losses.push_back("has no newline, so lines are joined");
  if (model_.add_dummy_prefix) losses.push_back("puts a space before each line");
  if (model_.whitespace_as_suffix) losses.push_back("puts a space after each word");
  return "tokens do not reproduce the text exactly: the model " + join(losses, ", ");
}

void SentencePieceTokenizer::save(const std::string& directory) const {
  const auto target = std::filesystem::path(directory) / "tokenizer.model";
  std::ofstream file(target, std::ios::binary);
  file << bytes_ << std::flush;
  if (!file) throw DataError(target.string() + ": cannot be written; is the disk full?");
  if (is_plain_bpe(model_))
    save_tokenizer_json(directory, bpe_tokenizer_json(model_, end_of_text_),
                        model_.pieces[static_cast<size_t>(end_of_text_)].text);
}

}  // namespace

std::unique_ptr<Tokenizer> load_sentencepiece(const std::string& path) {
  if (!std::filesystem::is_regular_file(path)) throw ConfigError(path + ": no such tokenizer model file");
  return std::make_unique<SentencePieceTokenizer>(path, read_file(path));
}

}  // namespace orthant
