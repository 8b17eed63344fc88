// Joins neighboring ranks of a class into runs. A lookup is a binary search over these.
#include "mesh/rank_classes.h"

#include <algorithm>
#include <map>

#include "base/errors.h"
#include "base/text.h"

namespace orthant {

RankClasses::RankClasses(std::span<const int> label_of_rank) : ranks_(static_cast<int>(label_of_rank.size())) {
  std::map<int, int> index_of;  // by label
  for (int rank = 0; rank < ranks_; ++rank) {
    const auto [found, is_new] = index_of.try_emplace(label_of_rank[static_cast<size_t>(rank)], count());
    if (is_new) ranges_.emplace_back();
    std::vector<Range>& own = ranges_[static_cast<size_t>(found->second)];
    if (runs_.empty() || runs_.back().index != found->second) {
      runs_.push_back({rank, found->second});
      own.push_back({rank, rank});
    }
    ++own.back().end;
  }
}

RankClasses RankClasses::joined(std::span<const int> label_of_class) const {
  ORTHANT_CHECK(std::ssize(label_of_class) == count(), label_of_class.size(), count());
  std::vector<int> labels;
  for (int rank = 0; rank < ranks_; ++rank) labels.push_back(label_of_class[static_cast<size_t>(of(rank))]);
  return RankClasses(labels);
}

int RankClasses::num_ranks(int index) const {
  int64_t sum = 0;
  for (const Range& range : ranges(index)) sum += range.size();
  return static_cast<int>(sum);
}

int RankClasses::of(int rank) const {
  ORTHANT_CHECK(rank >= 0 && rank < ranks_, rank, ranks_);
  return (std::ranges::upper_bound(runs_, rank, {}, &Run::first) - 1)->index;
}

std::string ranks_text(std::span<const Range> ranges) {
  std::vector<std::string> parts;
  for (const auto& [begin, end] : ranges) {
    parts.push_back(end - begin == 1 ? fmt::format("{}", begin) : fmt::format("{}-{}", begin, end - 1));
  }
  return join(parts, ", ");
}

}  // namespace orthant
