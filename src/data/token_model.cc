// Reads the "model" object of a tokenizer.json.
#include "data/token_model.h"

#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/errors.h"
#include "data/byte_characters.h"
#include "data/byte_pairs.h"
#include "data/json_fields.h"
#include "data/unigram.h"

namespace orthant {
namespace {

using Json = nlohmann::json;

int32_t token_id(const Json& id, const std::string& text, const std::string& source) {
  if (!id.is_number_unsigned() || id.get<uint64_t>() >= kMostTokens) {
    throw DataError(
        fmt::format("{}: the id of token \"{}\" must be a number from 0 to {}", source, text, kMostTokens - 1));
  }
  return id.get<int32_t>();
}

// The two texts of a merge, in either of its forms: "a b" or ["a", "b"].
std::pair<std::string, std::string> merge_of(const Json& merge, size_t index, const std::string& source) {
  if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
    return {merge[0].get<std::string>(), merge[1].get<std::string>()};
  }
  if (merge.is_string()) {
    const auto& text = merge.get_ref<const std::string&>();
    const size_t space = text.find(' ');
    if (space != std::string::npos && text.find(' ', space + 1) == std::string::npos) {
      return {text.substr(0, space), text.substr(space + 1)};
    }
  }
  throw DataError(fmt::format("{}: merge {} must be \"left right\" or [\"left\", \"right\"]", source, index));
}

// Options that change ids and that Orthant does not know must have their usual values.
void require_unused(const Json& model, const std::string& source) {
  for (const char* name : {"continuing_subword_prefix", "end_of_word_suffix", "dropout"}) {
    const auto found = model.find(name);
    if (found == model.end() || found->is_null() || *found == "" || *found == 0) continue;
    throw DataError(fmt::format("{}: model.{} = {} is not supported; Orthant reads models without it", source, name,
                                found->dump()));
  }
}

int count_byte_tokens(const Json& vocabulary) {
  int count = 0;
  for (int byte = 0; byte < 256; ++byte) count += vocabulary.contains(fmt::format("<0x{:02X}>", byte)) ? 1 : 0;
  return count;
}

std::unique_ptr<TokenModel> make_byte_pairs(const Json& model, bool byte_level, const std::string& source) {
  require_unused(model, source);
  BytePairs::Options options{.one_byte_characters = byte_level,
                             .byte_fallback = bool_or(model, "byte_fallback", false, source),
                             .fuse_unknown = bool_or(model, "fuse_unk", false, source),
                             .whole_pieces_first = bool_or(model, "ignore_merges", false, source)};
  const Json& vocabulary = member(model, "vocab", source);
  if (!vocabulary.is_object()) throw DataError(fmt::format("{}: model.vocab must be an object", source));
  std::vector<std::string> texts;
  std::vector<bool> taken, no_pieces;
  for (const auto& [text, id] : vocabulary.items()) {
    const auto at = static_cast<size_t>(token_id(id, text, source));
    // A larger vocabulary than this needs ids without texts, which no tokenizer has in such numbers.
    if (at > 2 * vocabulary.size() + 65536) {
      throw DataError(
          fmt::format("{}: token \"{}\" has id {}, but there are {} tokens", source, text, at, vocabulary.size()));
    }
    if (at >= texts.size()) texts.resize(at + 1), taken.resize(at + 1), no_pieces.resize(at + 1);
    if (taken[at]) throw DataError(fmt::format("{}: tokens must have different ids, but two have {}", source, at));
    const std::optional<std::string> bytes = byte_level ? bytes_of_characters(text) : text;
    texts[at] = bytes.value_or(text), no_pieces[at] = !bytes, taken[at] = true;
  }
  const auto id_of = [&](const std::string& text, const std::string& what) {
    const auto found = vocabulary.find(text);
    if (found != vocabulary.end()) return found->get<int32_t>();
    throw DataError(fmt::format("{}: {} \"{}\" is not in the vocabulary", source, what, text));
  };
  std::vector<BytePairs::Merge> merges;
  const Json& listed = member(model, "merges", source);
  if (!listed.is_array()) throw DataError(fmt::format("{}: model.merges must be an array", source));
  for (size_t index = 0; index < listed.size(); ++index) {
    const auto [left, right] = merge_of(listed[index], index, source);
    const std::string of = fmt::format("merge {}:", index);
    merges.push_back({id_of(left, of), id_of(right, of), id_of(left + right, of), static_cast<int32_t>(index)});
  }
  const std::string unknown = text_or(model, "unk_token", "", source);
  if (!unknown.empty()) options.unknown = id_of(unknown, "the unknown token");
  const auto bytes = options.byte_fallback ? count_byte_tokens(vocabulary) : 0;
  if (bytes > 0 && bytes < 256) {
    throw DataError(
        fmt::format("{}: with byte_fallback, the vocabulary must have all 256 bytes from <0x00> to <0xFF>, or "
                    "none, and has {}; Orthant cannot use this tokenizer",
                    source, bytes));
  }
  return std::make_unique<BytePairs>(std::move(texts), no_pieces, merges, options);
}

// The score as the parser of `tokenizers` reads it: the digits as an integer, divided by a power of ten. It may differ
// from the nearest number by one rounding, and then decides between two ways to cut that have the same score.
double parsed_score(double score) {
  std::array<char, 64> text{};  // the fewest digits that identify the number, and an exponent
  const auto end = std::to_chars(text.begin(), text.end(), std::abs(score), std::chars_format::scientific).ptr;
  const std::string digits(text.begin(), end);
  const size_t letter = digits.find('e');
  if (letter == std::string::npos) return score;
  std::string all = digits.substr(0, letter);
  std::erase(all, '.');
  const int exponent = std::stoi(digits.substr(letter + 1)) - static_cast<int>(all.size()) + 1;
  if (all.size() > 18 || std::abs(exponent) > 300) return score;
  const auto whole = static_cast<double>(std::stoll(all));
  const double power = std::pow(10.0, std::abs(exponent));
  return std::copysign(exponent < 0 ? whole / power : whole * power, score);
}

std::unique_ptr<TokenModel> make_unigram(const Json& model, const std::string& source) {
  const Json& vocabulary = member(model, "vocab", source);
  if (!vocabulary.is_array()) throw DataError(fmt::format("{}: model.vocab must be an array", source));
  std::vector<Unigram::Entry> pieces;
  for (const Json& piece : vocabulary) {
    if (!piece.is_array() || piece.size() != 2 || !piece[0].is_string() || !piece[1].is_number()) {
      throw DataError(fmt::format("{}: piece {} must be [\"text\", score]", source, pieces.size()));
    }
    pieces.push_back({piece[0].get<std::string>(), parsed_score(piece[1].get<double>())});
  }
  const Json* unknown = optional_member(model, "unk_id");
  const int32_t id = unknown == nullptr ? -1 : token_id(*unknown, "unk_id", source);
  if (id >= static_cast<int32_t>(pieces.size())) {
    throw DataError(fmt::format("{}: model.unk_id = {} must be below the {} pieces", source, id, pieces.size()));
  }
  return std::make_unique<Unigram>(std::move(pieces), id, bool_or(model, "byte_fallback", false, source));
}

}  // namespace

std::unique_ptr<TokenModel> make_token_model(const Json& model, bool byte_level, const std::string& source) {
  const std::string type = text_or(model, "type", model.contains("merges") ? "BPE" : "", source);
  if (type == "BPE") return make_byte_pairs(model, byte_level, source);
  if (type == "Unigram" && byte_level) {
    throw DataError(source +
                    ": a Unigram model with the pre-tokenizer ByteLevel is not supported; Orthant reads BPE "
                    "models with it");
  }
  if (type == "Unigram") return make_unigram(model, source);
  throw DataError(fmt::format("{}: model.type = \"{}\" is not supported; Orthant reads BPE and Unigram", source, type));
}

}  // namespace orthant
