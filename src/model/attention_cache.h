// Attention with a cache of keys and values: the core of generation.
#pragma once

#include "model/attention_core.h"

namespace orthant {

/// The core for texts whose tokens arrive piece by piece. It owns the keys and values of every layer, and attends from
/// the new tokens to all tokens so far. batch.sequence_length counts the tokens so far, the new ones included, and
/// batch.samples_B numbers the texts, ascending; texts that are missing in a later call are dropped. It has no
/// backward, and it supports only causal attention. Use a new core for each microbatch of texts.
AttentionCore cached_attention();

}  // namespace orthant
