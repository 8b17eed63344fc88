// A unigram model: of all ways to cut a piece into the vocabulary's texts, it takes the one with the highest sum of
// scores.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "data/byte_trie.h"
#include "data/token_model.h"

namespace orthant {

class Unigram final : public TokenModel {
 public:
  struct Entry {
    std::string text;
    double score = 0;
  };
  /// `unknown`: id of the token for unknown characters, or -1. Neighboring unknown characters become one token, or,
  /// with byte_fallback and tokens for all their bytes, such as <0x0A>, these.
  Unigram(std::vector<Entry> pieces, int32_t unknown, bool byte_fallback);

  Unigram(const Unigram&) = delete;
  void encode(std::string_view piece, std::vector<int32_t>& ids) const override;
  const std::vector<std::string>& texts() const override { return texts_; }
  bool loses_unknown_text() const override;
  std::string name() const override { return "Unigram"; }

 private:
  void append_unknown(std::string_view text, std::vector<int32_t>& ids) const;

  std::vector<std::string> texts_;
  std::vector<double> scores_;
  std::unordered_map<std::string_view, int32_t> ids_;  // views of texts_
  ByteTrie trie_;
  std::array<int32_t, 256> byte_tokens_;  // -1 if there is none
  const int32_t unknown_;
  const bool byte_fallback_;
  double unknown_score_ = 0;
};

}  // namespace orthant
