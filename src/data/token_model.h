// The models of a tokenizer.json: byte-pair encoding and unigram. Each turns one piece of text into tokens.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace orthant {

class TokenModel {
 public:
  virtual ~TokenModel() = default;
  /// Appends the ids of a piece. Threads may share a model.
  virtual void encode(std::string_view piece, std::vector<int32_t>& ids) const = 0;
  /// The texts by id, as they are in pieces; empty for ids without a text.
  virtual const std::vector<std::string>& texts() const = 0;
  /// True if some text has no token, so that encode() replaces it by the unknown token or drops it.
  virtual bool loses_unknown_text() const = 0;
  /// "BPE" or "Unigram".
  virtual std::string name() const = 0;
};

/// Makes the model of a tokenizer.json from its "model" object. `byte_level`: its vocabulary spells bytes as
/// characters, as GPT-2's does; pieces and texts() are then bytes. Throws DataError, with `source`, for models and
/// options that Orthant does not know, and for damaged vocabularies.
std::unique_ptr<TokenModel> make_token_model(const nlohmann::json& model, bool byte_level, const std::string& source);

}  // namespace orthant
