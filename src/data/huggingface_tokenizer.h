// Reads tokenizers as Hugging Face's library `tokenizers` writes them: tokenizer.json.
#pragma once

#include <memory>
#include <string>

#include "data/tokenizer.h"

namespace orthant {

/// Reads a tokenizer.json with a BPE or unigram model. Its ids are those of `tokenizers`, also for added tokens that
/// are spelled out in text. begin_tokens() are the special tokens that its post-processor puts before a text. The
/// end-of-text token is the eos_token of tokenizer_config.json or the eos_token_id of config.json or
/// generation_config.json in the same folder, or else a token with a usual name. Throws ConfigError if the file does
/// not exist or has no end-of-text token, DataError if it is damaged or names a part that Orthant does not know.
std::unique_ptr<Tokenizer> load_huggingface_tokenizer(const std::string& path);

}  // namespace orthant
