#include "parallel/vocabulary/layers_plan.h"

#include <algorithm>

#include "mesh/collective.h"

namespace orthant {
namespace {

VocabularyMessages messages(CollectiveKind kind, int64_t calls, const VocabularyShape& shape, int position,
                            int64_t elements, int element_bytes) {
  const int place = (position - shape.root + shape.ranks) % shape.ranks;
  const int64_t extents[] = {elements};
  return {name_of(kind), calls, calls * element_bytes * elements_sent(kind, shape.ranks, place, extents)};
}

}  // namespace

Range VocabularySlice::real() const { return {rows.begin, std::clamp(vocabulary, rows.begin, rows.end)}; }

std::vector<VocabularyMessages> output_traffic(const VocabularyAlgorithm& algorithm, const OutputLoss& loss,
                                               const VocabularyShape& shape, int position, bool with_gradient) {
  if (shape.ranks == 1) return {};
  const int64_t own = shape.tokens * loss.statistics();
  const bool naive = algorithm.rounds() == 2;
  std::vector<VocabularyMessages> all;
  all.push_back(messages(CollectiveKind::broadcast, 1, shape, position, shape.stream, shape.element_bytes));
  // All ranks have equally many statistics, and each sends those of all ranks but one.
  all.push_back({name_of(CollectiveKind::all_gather), naive ? 2 : 1, (shape.ranks - 1) * own * shape.statistic_bytes});
  if (with_gradient) {
    all.push_back(messages(CollectiveKind::reduce, 1, shape, position, shape.stream, shape.element_bytes));
  }
  return all;
}

std::vector<VocabularyMessages> input_traffic(const VocabularyShape& shape, int position) {
  if (shape.ranks == 1) return {};
  return {messages(CollectiveKind::reduce, 1, shape, position, shape.stream, shape.element_bytes),
          messages(CollectiveKind::broadcast, 1, shape, position, shape.stream, shape.element_bytes)};
}

}  // namespace orthant
