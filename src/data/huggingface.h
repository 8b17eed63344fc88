// Tokenizers in the form of Hugging Face's `tokenizers`: what AutoTokenizer of transformers reads in a model's
// directory, without sentencepiece installed.
#pragma once

#include <cstdint>
#include <string>

#include "data/sentencepiece_model.h"

namespace orthant {

/// tokenizer.json of the byte tokenizer: byte-level BPE without a single merge.
std::string byte_tokenizer_json();

/// tokenizer.json of a byte-pair model that keeps text as it is (see is_plain_bpe): the same ids, but for what a reader
/// of text cannot tell apart there: U+2581 is taken for a space, the end-of-text piece written out for its id.
std::string bpe_tokenizer_json(const SentencePieceModel& model, int32_t end_of_text);
/// Byte-pair pieces and bytes alone, no replacement of characters, no space added or dropped.
bool is_plain_bpe(const SentencePieceModel& model);

/// Writes tokenizer.json, and the tokenizer_config.json that says how to load it and that nothing is put around a text.
void save_tokenizer_json(const std::string& directory, const std::string& json, const std::string& end_of_text);

}  // namespace orthant
