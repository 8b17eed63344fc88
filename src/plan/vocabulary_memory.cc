#include "plan/vocabulary_memory.h"

#include <algorithm>

namespace orthant {

VocabularyMemory vocabulary_memory(const Plan& plan, int rank, int64_t sequences) {
  if (plan.vocabulary.empty()) return {};
  const int64_t tokens = sequences * plan.num_places(rank), rows = plan.vocabulary_rows(rank).size();
  const int64_t element = dtype_bytes(plan.config.training.dtype), wide = std::max<int64_t>(element, 4);
  const int64_t chunk = std::min(tokens, loss_chunk_rows(std::max<int64_t>(1, rows)));
  const int64_t stream = tokens * plan.architecture.hidden_size;
  const bool naive = plan.vocabulary == "naive", early = plan.vocabulary == "algorithm_2";
  VocabularyMemory memory;
  memory.kept = tokens * rows * element + stream * element + (early ? stream * wide : 0);
  // Logits of a chunk, in the naive order of all tokens; two of a chunk's size where exponentials are made of them.
  const int64_t logits = (naive ? tokens : chunk) * rows * wide;
  memory.output = memory.kept + logits;
  // Gradients of a chunk's logits, in place where they are wide already; the input's where S has not made it.
  memory.backward = (wide > element ? chunk * rows * (wide + element) : 0) + (early ? 0 : stream * element);
  memory.streams = 4 * stream * element;
  return memory;
}

}  // namespace orthant
