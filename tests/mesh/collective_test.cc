// The elements that ranks send and receive in one collective.
#include "mesh/collective.h"

#include <gtest/gtest.h>

#include <array>

namespace orthant::collective_test {
namespace {

// Ten elements over four coordinates, whose chunks have 3, 3, 2 and 2.
TEST(Collective, MovesTheElementsOfTheFormulas) {
  const std::array<int64_t, 1> ten = {10};
  const auto moved = [&](CollectiveKind kind, int coord) { return elements_moved(kind, 4, coord, ten); };
  using enum CollectiveKind;
  EXPECT_EQ(moved(reduce, 0), (Moved{0, 30}));
  EXPECT_EQ(moved(reduce, 2), (Moved{10, 0}));
  EXPECT_EQ(moved(reduce_in_chunks, 0), (Moved{7, 9 + 7}));
  EXPECT_EQ(moved(reduce_in_chunks, 2), (Moved{10, 6}));
  EXPECT_EQ(moved(broadcast, 0), (Moved{10, 0}));
  EXPECT_EQ(moved(broadcast, 3), (Moved{0, 10}));
  EXPECT_EQ(moved(all_gather, 1), (Moved{8, 7}));
  EXPECT_EQ(moved(reduce_scatter, 1), (Moved{7, 9}));
  EXPECT_EQ(moved(all_reduce, 1), (Moved{16, 16}));
}

// Every element that a coordinate sends is received by another one.
TEST(Collective, CoordinatesReceiveWhatOthersSend) {
  using enum CollectiveKind;
  for (const CollectiveKind kind :
       {all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, reduce, reduce_in_chunks, shift}) {
    for (int size = 1; size <= 7; ++size) {
      for (const std::array<int64_t, 2>& extents : {std::array<int64_t, 2>{12, 35}, {7, 10}, {3, 2}, {0, 4}}) {
        Moved all;
        for (int coord = 0; coord < size; ++coord) {
          all += elements_moved(kind, size, coord, extents, 0, kind == reduce_scatter ? 0 : 1);
        }
        EXPECT_EQ(all.sent, all.received) << name_of(kind) << " over " << size << " of " << extents[0];
      }
    }
  }
}

}  // namespace
}  // namespace orthant::collective_test
