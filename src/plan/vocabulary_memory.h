// Counts the bytes that a rank's vocabulary rows take for one microbatch if the vocabulary is sharded over the
// pipeline.
#pragma once

#include <cstdint>

#include "plan/sharding.h"

namespace orthant {

/// All fields are bytes, and 0 if the vocabulary is not sharded over the pipeline.
struct VocabularyMemory {
  int64_t kept = 0;      // from S to T or TW: exponentials, the layer's input, and (algorithm_2) the early product of S
  int64_t logits = 0;    // from S to Z, with the naive algorithm
  int64_t output = 0;    // peak of S, including the bytes that S keeps
  int64_t backward = 0;  // peak of T or TW in addition to `kept`
  int64_t embedding = 0;  // the rank's summand of the embedding, held from E to the microbatch's first F on the rank
  int64_t streams = 0;   // the output layer's inputs, and gradients of both layers; held throughout the row
  int64_t lookup = 0, lookup_backward = 0;  // peaks of E and EB in addition to that; 0 unless a tensor mesh shares rows

  auto operator<=>(const VocabularyMemory&) const = default;
};

/// Returns the bytes for a microbatch of `sequences` sequences on the rank.
VocabularyMemory vocabulary_memory(const Sharding& plan, int rank, int64_t sequences);

}  // namespace orthant
