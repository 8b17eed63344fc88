#include "parallel/sequence/scores_plan.h"

#include <algorithm>

#include "base/errors.h"
#include "mesh/layout.h"

namespace orthant {
namespace {

// Positions first, first + step, ..., `count` of them.
struct Positions {
  int64_t first, count, step;

  /// Sum of min(position + more, most) over the positions.
  int64_t sum(int64_t more, int64_t most) const {
    const int64_t least = first + more, below = least > most ? 0 : std::min(count, (most - least) / step + 1);
    return below * least + step * (below * (below - 1) / 2) + (count - below) * most;
  }
};

Positions positions_of(const Range& part) { return {part.begin, part.size(), 1}; }

int64_t seen_pairs(const Positions& positions, int64_t seq_len, bool causal, int64_t window) {
  const int64_t up_to_own = positions.sum(1, window);
  if (causal) return up_to_own;
  // min(p + 1, window) keys up to the own position p, and min(p + window, seq_len) - (p + 1) keys after it.
  return up_to_own + positions.sum(window, seq_len) - positions.sum(1, seq_len);
}

}  // namespace

int64_t num_visible_pairs(SequencePlacement placement, int64_t seq_len, int ring, int r, bool causal, int64_t window) {
  ORTHANT_CHECK(seq_len > 0 && r >= 0 && r < ring, seq_len, r, ring);
  const int64_t most = window > 0 ? std::min(window, seq_len) : seq_len;
  const auto of = [&](const Positions& positions) { return seen_pairs(positions, seq_len, causal, most); };
  switch (placement) {
    case SequencePlacement::contiguous: return of(positions_of(shard(seq_len, ring, r)));
    case SequencePlacement::zigzag:
      return of(positions_of(shard(seq_len, 2 * ring, r))) +
             of(positions_of(shard(seq_len, 2 * ring, 2 * ring - 1 - r)));
    case SequencePlacement::stripe: break;
  }
  return of({r, shard(seq_len, ring, r).size(), ring});
}

}  // namespace orthant
