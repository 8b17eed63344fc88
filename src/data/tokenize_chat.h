// Tokenizes conversations into two indexed datasets: their tokens, and for each token whether the model learns it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "data/chat_template.h"
#include "data/indexed_dataset.h"
#include "data/text_file.h"
#include "data/tokenize_text.h"
#include "data/tokenizer.h"

namespace orthant {

/// Writes a document for each conversation: its tokens to `tokens`, and 1 for learned tokens, else 0, to `learned`; the
/// caller calls finish(). A text from a template has the tokens of that text alone. A pair of prompt and completion
/// begins with the begin tokens and ends with the end-of-text id, which is learned. Returns the number of
/// conversations.
int64_t tokenize_chat(std::span<const TextFile> files, const ChatTemplate& chat_template, const Tokenizer& tokenizer,
                      IndexedDatasetWriter& tokens, IndexedDatasetWriter& learned, const TextProgress& progress = {});

/// For each token of each text, 1 if the model learns it, else 0. `tokens` are the ids of the texts. A token is learned
/// if it has text of a learned range. Example: of "Q: 2+2 A: 4", with the range of " 4" learned, it is the token of "
/// 4".
std::vector<std::vector<int32_t>> learned_tokens(std::span<const ChatText> chats,
                                                 std::span<const std::vector<int32_t>> tokens,
                                                 const Tokenizer& tokenizer);

}  // namespace orthant
