// Tokenizes conversations into two indexed datasets: their tokens, and their loss mask.
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

/// Writes a document for each conversation: its tokens to `tokens`, and its loss mask, 1 for a token that carries loss
/// and else 0, to `loss_mask`; the caller calls finish(). A text from a template has the tokens of that text alone. A
/// pair of prompt and completion begins with the begin tokens and ends with the end-of-text id, which carries loss.
/// Returns the number of conversations.
int64_t tokenize_chat(std::span<const TextFile> files, const ChatTemplate& chat_template, const Tokenizer& tokenizer,
                      IndexedDatasetWriter& tokens, IndexedDatasetWriter& loss_mask, const TextProgress& progress = {});

/// The loss mask of each text: for each of its tokens, 1 if it carries loss, else 0. `tokens` are the ids of the texts.
/// A token carries loss if it has text of a range with loss. Example: in "Q: 2+2 A: 4" with the range of " 4", it is
/// the token of " 4".
std::vector<std::vector<int32_t>> loss_masks(std::span<const ChatText> chats,
                                             std::span<const std::vector<int32_t>> tokens, const Tokenizer& tokenizer);

}  // namespace orthant
