// What a rank's rows of the vocabulary take of one microbatch, where they are cut over the pipeline.
#pragma once

#include <cstdint>

#include "plan/plan.h"

namespace orthant {

/// Bytes; 0 where the vocabulary is not cut.
struct VocabularyMemory {
  int64_t kept = 0;               // from S to T or TW: exponentials, the layer's input, the product that S makes early
  int64_t logits = 0;             // from S to Z, in the naive order
  int64_t output = 0;             // the most that S holds, and what it keeps among it
  int64_t backward = 0;           // the most that T or TW holds beside what is kept
  int64_t streams = 0;            // what comes and goes: inputs and gradients of both layers, throughout the row
  int64_t lookup = 0, lookup_backward = 0;  // the most that E and EB hold beside that, where a tensor mesh shares rows
};

VocabularyMemory vocabulary_memory(const Plan& plan, int rank, int64_t sequences);

}  // namespace orthant
