// Exports tokenizers as tokenizer.json of Hugging Face's `tokenizers`, which AutoTokenizer of transformers reads from a
// model's directory without sentencepiece installed.
#pragma once

#include <cstdint>
#include <string>

#include "data/sentencepiece_model.h"

namespace orthant {

/// tokenizer.json of the byte tokenizer: byte-level BPE without merges.
std::string byte_tokenizer_json();

/// tokenizer.json of a byte-pair model that preserves text (LogicError unless is_plain_bpe()). It gives the same ids
/// with two exceptions that its text cannot express: U+2581 counts as a space, and the spelled-out end-of-text piece
/// becomes its id.
std::string bpe_tokenizer_json(const SentencePieceModel& model, int32_t end_of_text);
/// True for a model of byte-pair pieces of at most 128 bytes and all 256 bytes that replaces no characters and adds or
/// drops no spaces.
bool is_plain_bpe(const SentencePieceModel& model);

/// Writes tokenizer.json and tokenizer_config.json; the latter tells AutoTokenizer how to load the former and to add no
/// special tokens. Throws DataError.
void save_tokenizer_json(const std::string& directory, const std::string& json, const std::string& end_of_text);

}  // namespace orthant
