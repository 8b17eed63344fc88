// Byte-pair encoding: a piece starts as one token per character or byte, and neighbors are merged in the order of the
// merges.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "data/token_model.h"

namespace orthant {

class BytePairs final : public TokenModel {
 public:
  struct Options {
    bool one_byte_characters = false;  // a piece starts as its bytes, else as its characters
    bool byte_fallback = false;        // unknown characters become tokens such as <0x0A>, if there are all
    bool fuse_unknown = false;         // neighboring unknown characters become one token
    bool whole_pieces_first = false;   // a piece that is a token becomes this token without merges
    int32_t unknown = -1;              // token for unknown characters; -1: they are dropped
  };
  struct Merge {
    int32_t left = 0, right = 0, token = 0;  // left followed by right becomes token
    int32_t rank = 0;                        // the lowest merges first, the leftmost of equal ranks
  };
  /// `texts`: by id. Those of `no_pieces` are never found in pieces.
  BytePairs(std::vector<std::string> texts, const std::vector<bool>& no_pieces, const std::vector<Merge>& merges,
            const Options& options);
  BytePairs(const BytePairs&) = delete;
  void encode(std::string_view piece, std::vector<int32_t>& ids) const override;
  const std::vector<std::string>& texts() const override { return texts_; }
  bool loses_unknown_text() const override;
  std::string name() const override { return "BPE"; }

 private:
  struct MixedBits {
    size_t operator()(uint64_t pair) const;
  };
  const Merge* find_merge(int32_t left, int32_t right) const;
  std::vector<int32_t> initial_tokens(std::string_view piece) const;
  void append_unknown(std::string_view character, bool after_unknown, std::vector<int32_t>& tokens) const;
  void merge_few(std::vector<int32_t>& tokens) const;
  void merge_many(std::vector<int32_t>& tokens) const;

  const Options options_;
  std::vector<std::string> texts_;
  std::unordered_map<std::string_view, int32_t> ids_;  // views of texts_
  std::unordered_map<uint64_t, Merge, MixedBits> merges_;
  std::array<int32_t, 256> byte_tokens_;  // of one-byte characters, or of byte_fallback; -1 if there is none
};

}  // namespace orthant
