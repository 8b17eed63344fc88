// 1F1B with the vocabulary layers cut over its ranks, as the paper writes it down: every rank repeats one pattern, and
// the place of the output layer in it follows from times. Yeung et al. 2024, arXiv 2411.05288.
//
// Of p ranks and passes of f, b and o (the output layer's share): rank r holds p - r + k microbatches; the bubble is at
// most (p-1)(f+b) + k f. Where o > f, and for any other schedule: add_vocabulary().
#pragma once

#include "parallel/vocabulary/plan.h"

namespace orthant {

/// `algorithm` is algorithm_1 or algorithm_2. Of `durations` F, B, S, T or TW, and barrier_s count.
Schedule vocabulary_one_f_one_b(int ranks, int microbatches, const VocabularyAlgorithm& algorithm,
                                const Durations& durations, bool input = true);

}  // namespace orthant
