// Reads a sentencepiece .model file: the protobuf fields that decoding and export need.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace orthant {

struct SentencePieceModel {
  enum Type : int32_t { kNormal = 1, kUnknown = 2, kControl = 3, kUser = 4, kUnused = 5, kByte = 6 };
  struct Piece {
    std::string text;
    float score = 0;
    int32_t type = kNormal;
  };

  std::vector<Piece> pieces;
  int32_t kind = 1;  ///< 1 unigram, 2 bpe, 3 word, 4 char
  int32_t unk_id = 0, bos_id = 1, eos_id = 2, pad_id = -1;
  std::string unk_surface = " \xe2\x81\x87 ";  ///< text of an unknown piece
  bool byte_fallback = false;
  bool whitespace_as_suffix = false;
  bool has_normalization = false;  ///< true if the model has a table of replacements, such as nmt_nfkc
  bool add_dummy_prefix = true;
  bool remove_extra_whitespaces = true;
  bool escape_whitespaces = true;
};

/// Parses the bytes of a .model file. Throws DataError with source and offset.
SentencePieceModel parse_sentencepiece_model(std::string_view bytes, const std::string& source);

}  // namespace orthant
