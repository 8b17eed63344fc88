// The "decoder" of a tokenizer.json: turns tokens into the text that they stand for.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

namespace orthant {

class Decoder {
 public:
  /// `json` may be null: a token's text is its text in the vocabulary. Throws DataError, with `source`, for a type that
  /// Orthant does not know. The order of steps is not kept, because the steps of known tokenizers do not depend on it.
  Decoder(const nlohmann::json& json, const std::string& source);

  /// The text that a token with this text in the vocabulary stands for. Throws DataError if it is too long, by
  /// GrowthLimit.
  std::string surface(std::string text) const;
  /// True if the first space of a decoded text was put there by encoding.
  bool drops_first_space() const { return drops_first_space_; }

 private:
  void add(const nlohmann::json& json);

  std::string source_;
  bool reads_bytes_ = false;  // tokens such as <0x0A> are bytes
  std::vector<std::pair<std::string, std::string>> replacements_;
  bool drops_first_space_ = false;
};

}  // namespace orthant
