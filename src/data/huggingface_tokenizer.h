// Reads tokenizers as Hugging Face's library `tokenizers` writes them: tokenizer.json.
#pragma once

#include <memory>
#include <string>

#include "data/tokenizer.h"

namespace orthant {

/// Reads a tokenizer.json with a model of byte pairs or unigrams. Its ids are those of `tokenizers`; of the marks
/// of its post-processor, those before the text are begin_marks(). The end-of-text token is the eos_token of
/// tokenizer_config.json or the eos_token_id of config.json in the same folder, or else an added token with a usual
/// name. Throws ConfigError if the file does not exist or there is no end-of-text token, DataError if it is damaged or
/// names a part that Orthant does not know.
std::unique_ptr<Tokenizer> load_huggingface_tokenizer(const std::string& path);

}  // namespace orthant
