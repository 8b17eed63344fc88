// Generates ZB-H1 and ZB-H2, which differ only in two numbers per rank.
#include "parallel/pipeline/zero_bubble_plan.h"

#include <algorithm>

#include "base/errors.h"
#include "parallel/pipeline/stages_plan.h"

namespace orthant {
namespace {

/// Generates an order in which rank r runs ahead(r) + extra_warmup_forwards forwards before its first backward, and
/// delays each W by late(r) microbatches after its I.
template <typename Ahead, typename Late>
Schedule split_1f1b(int ranks, int microbatches, int extra_warmup_forwards, Ahead ahead, Late late) {
  ORTHANT_CHECK(microbatches >= 1 && extra_warmup_forwards >= 0, microbatches, extra_warmup_forwards);
  Schedule out = round_robin_stages(ranks, 1);
  for (int rank = 0; rank < ranks; ++rank) {
    auto& row = out.rows[static_cast<size_t>(rank)];
    int forwards = 0, weights = 0;
    while (forwards < std::min(microbatches, ahead(rank) + extra_warmup_forwards))
      row.push_back({ActionKind::F, rank, forwards++});
    for (int m = 0; m < microbatches; ++m) {
      row.push_back({ActionKind::I, rank, m});
      if (m >= late(rank)) row.push_back({ActionKind::W, rank, weights++});
      if (forwards < microbatches) row.push_back({ActionKind::F, rank, forwards++});
    }
    while (weights < microbatches) row.push_back({ActionKind::W, rank, weights++});
  }
  return out;
}

}  // namespace

Schedule zb_h1(int ranks, int microbatches, int extra_warmup_forwards) {
  return split_1f1b(
      ranks, microbatches, extra_warmup_forwards, [&](int rank) { return ranks - rank; },
      [](int rank) { return rank; });
}

Schedule zb_h2(int ranks, int microbatches, int extra_warmup_forwards) {
  return split_1f1b(
      ranks, microbatches, extra_warmup_forwards, [&](int rank) { return 2 * (ranks - rank) - 1; },
      [](int rank) { return 2 * rank; });
}

}  // namespace orthant
