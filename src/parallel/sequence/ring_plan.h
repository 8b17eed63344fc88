// The order in which blocks go round a ring, and round a ring of rings.
#pragma once

#include <vector>

namespace orthant {

/// Some members of a group, in the order in which blocks go round, by their positions in it.
struct Ring {
  std::vector<int> members;
  int index = 0;  // of this rank

  int size() const { return static_cast<int>(members.size()); }
  /// The member whose block arrives at step s, since blocks go to the next one: index - s.
  int source(int step) const { return ((index - step) % size() + size()) % size(); }
};

/// A ring of windows (Gu et al. 2024, "LoongTrain", arXiv 2406.18485, section 4.3): blocks go round inside a window of
/// neighbours while each window's blocks are on their way to the next. The inner ring alone, where a window is all.
struct DoubleRing {
  Ring inner, outer;  // outer: the windows' members with this rank's place, one a window
  int window = 0;

  /// The group's member whose block it is: window x inner size + index within.
  int member(int window_of, int index_in) const { return window_of * window + index_in; }
};
DoubleRing double_ring(int size, int index, int window);

}  // namespace orthant
