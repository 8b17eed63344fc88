// The number of visible (query, key) pairs of each ring rank equals that of the visibility that attention uses, and the
// published values.
#include "parallel/sequence/scores_plan.h"

#include <gtest/gtest.h>

#include "model/visibility.h"

namespace orthant::scores_plan_test {
namespace {

constexpr SequencePlacement kPlacements[] = {SequencePlacement::contiguous, SequencePlacement::zigzag,
                                             SequencePlacement::stripe};

TEST(SeenPairs, AreThoseOfTheVisibility) {
  for (const int64_t length : {1, 2, 7, 16, 61}) {
    for (const int ring : {1, 2, 3, 5, 8}) {
      for (const SequencePlacement placement : kPlacements) {
        for (const bool causal : {true, false}) {
          for (const int64_t window : {int64_t{0}, int64_t{1}, int64_t{5}, int64_t{16}, INT64_MAX}) {
            for (int r = 0; r < ring; ++r) {
              const Visibility v = compute_visibility({.causal = causal, .sliding_window = window},
                                                      ring_positions(placement, length, ring, r), length);
              int64_t pairs = 0;
              for (size_t i = 0; i < v.end.size(); ++i) pairs += v.end[i] - v.first[i];
              ASSERT_EQ(num_visible_pairs(placement, length, ring, r, causal, window), pairs)
                  << length << " tokens, rank " << r << " of " << ring << ", placement " << static_cast<int>(placement)
                  << ", causal " << causal << ", window " << window;
            }
          }
        }
      }
    }
  }
}

// Ring Self-Attention, check 15; Unified Sequence Parallelism, check 7; and the longest sequence that a run file
// allows, 2^27 tokens.
TEST(SeenPairs, HaveThePublishedNumbers) {
  for (int r = 0; r < 8; ++r) {
    EXPECT_EQ(num_visible_pairs(SequencePlacement::zigzag, 64, 8, r, true, 0), 260);
    EXPECT_EQ(num_visible_pairs(SequencePlacement::stripe, 64, 8, r, true, 0), 232 + 8 * r);
    EXPECT_EQ(num_visible_pairs(SequencePlacement::contiguous, 64, 8, r, true, 0), 36 + 64 * r);
  }
  constexpr int64_t kLongest = 134217728;
  EXPECT_EQ(num_visible_pairs(SequencePlacement::contiguous, kLongest, 1, 0, false, 0), kLongest * kLongest);
  EXPECT_EQ(num_visible_pairs(SequencePlacement::stripe, kLongest, 1, 0, true, 0), kLongest / 2 * (kLongest + 1));
}

}  // namespace
}  // namespace orthant::scores_plan_test
