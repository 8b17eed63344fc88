#include "parallel/vocabulary/layers_plan.h"

#include <algorithm>

#include "mesh/axes.h"

namespace orthant {
namespace {

constexpr const char* kOutput = "output layer, sharded over the pipeline";
constexpr const char* kInput = "embedding, sharded over the pipeline";

// One call on a tensor of `elements` elements.
Messages message(const char* what, CollectiveKind kind, const VocabularyShape& shape, int position, int64_t elements,
                 int element_bytes) {
  const int place = (position - shape.root + shape.ranks) % shape.ranks;
  const int64_t extents[] = {elements};
  return {what, std::string(name_of(kind)), kPipeline, 1,
          element_bytes * elements_moved(kind, shape.ranks, place, extents)};
}

}  // namespace

Range VocabularySlice::real() const { return {rows.begin, std::clamp(vocabulary, rows.begin, rows.end)}; }

std::vector<Messages> output_traffic(const VocabularyAlgorithm& algorithm, const OutputLoss& loss,
                                     const VocabularyShape& shape, int position, bool with_gradient) {
  if (shape.ranks == 1) return {};
  const int64_t own = shape.tokens * loss.statistics();
  const bool naive = algorithm.rounds() == 2;
  std::vector<Messages> all;
  all.push_back(message(kOutput, CollectiveKind::broadcast, shape, position, shape.stream, shape.element_bytes));
  // All ranks have equally many statistics, and each sends those of all ranks but one.
  const int64_t statistics = (shape.ranks - 1) * own * shape.statistic_bytes();
  all.push_back(
      {kOutput, std::string(name_of(CollectiveKind::all_gather)), kPipeline, naive ? 2 : 1, {statistics, statistics}});
  if (with_gradient) {
    all.push_back(message(kOutput, root_sum(shape.over_nccl), shape, position, shape.stream, shape.element_bytes));
  }
  return all;
}

std::vector<Messages> input_traffic(const VocabularyShape& shape, int position) {
  if (shape.ranks == 1) return {};
  return {message(kInput, root_sum(shape.over_nccl), shape, position, shape.stream, shape.element_bytes),
          message(kInput, CollectiveKind::broadcast, shape, position, shape.stream, shape.element_bytes)};
}

}  // namespace orthant
