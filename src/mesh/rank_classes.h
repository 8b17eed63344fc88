// RankClasses: a partition of the ranks 0..N-1 into classes. Values that all ranks of a class share are computed and
// stored once, so that their cost grows with the classes and not with the ranks.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "mesh/mesh.h"

namespace orthant {

/// Classes are numbered from 0 in the order of their lowest ranks.
/// Example: the labels 7 7 3 7 of ranks 0 to 3 make the classes {0, 1, 3} and {2}.
class RankClasses {
 public:
  RankClasses() = default;
  /// Ranks with equal labels are one class.
  explicit RankClasses(std::span<const int> label_of_rank);

  /// The classes that remain if those with equal labels are joined.
  RankClasses joined(std::span<const int> label_of_class) const;

  /// Number of classes.
  int count() const { return static_cast<int>(ranges_.size()); }
  /// Number of ranks, and of the ranks in one class.
  int num_ranks() const { return ranks_; }
  int num_ranks(int index) const;
  /// The class of a rank. Throws LogicError if there is no such rank.
  int of(int rank) const;
  /// The lowest rank of a class.
  int first_rank(int index) const { return static_cast<int>(ranges(index).front().begin); }
  /// The ranks of a class as ascending ranges, of which no two touch.
  const std::vector<Range>& ranges(int index) const { return ranges_.at(static_cast<size_t>(index)); }

  bool operator==(const RankClasses& other) const { return ranges_ == other.ranges_; }

 private:
  struct Run {
    int first, index;  // ranks from `first` up to the next run belong to this class
  };
  std::vector<Run> runs_;
  std::vector<std::vector<Range>> ranges_;  // by class
  int ranks_ = 0;
};

/// Ranges of ranks as text: "0-3, 6".
std::string ranks_text(std::span<const Range> ranges);

}  // namespace orthant
