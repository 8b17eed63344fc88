// The order in which blocks travel round a ring, and round a ring of rings.
#pragma once

#include <vector>

namespace orthant {

/// Members of a group in the order in which blocks travel, each as its position in the group.
struct Ring {
  std::vector<int> members;
  int index = 0;  // of this rank in `members`

  int size() const { return static_cast<int>(members.size()); }
  /// Index of the member whose block is here at a step: index - step modulo size, because blocks go to the next member.
  int source(int step) const { return ((index - step) % size() + size()) % size(); }
};

/// A ring of windows (Gu et al. 2024, "LoongTrain", arXiv 2406.18485, section 4.3). Blocks travel round a window of
/// adjacent ranks while every rank's block travels to the next window. One window of all ranks is a single ring.
struct DoubleRing {
  Ring inner, outer;  // outer: the members with this rank's index in their window, one of each window
  int window = 0;     // ranks of a window

  /// Group position of the member at an index within a window.
  int member(int window_of, int index_in) const { return window_of * window + index_in; }
};
/// The rings of the rank at position `index` in a group of `size` ranks. `window` must divide `size`.
DoubleRing double_ring(int size, int index, int window);

}  // namespace orthant
