#include "plan/microbatch_costs.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/shared_values.h"
#include "config/from_config.h"
#include "parallel/vocabulary/layers_plan.h"
#include "plan/vocabulary.h"

namespace orthant {
namespace {

// Returns the axes along which microbatch costs differ. With a vocabulary that is sharded over the pipeline, its ranks
// have different rows and different neighbors.
Axes axes_of_activations(const Sharding& sharding) {
  Axes axes = {kColumn, kRow, kUlysses, kRing};
  if (!sharding.vocabulary.empty()) axes.push_back(kPipeline);
  return axes;
}

// Returns the messages that the tensor mesh of one pipeline rank sends for its vocabulary rows.
TensorSliceTraffic slice_messages(const Sharding& plan, int rank, const TensorShape& shape) {
  if (plan.tensor.rows * plan.tensor.columns == 1) return {};
  const OutputLoss loss = make_output_loss(plan.config);
  const TensorSlice slice{.rows = plan.vocabulary_rows(rank).size(),
                          .early = sums_input_gradient_early(plan),
                          .statistics = loss.statistics(),
                          .rounds = algorithm_of(plan)->rounds(),
                          .smooths = loss.smoothing > 0};
  return slice_traffic(plan.tensor, shape, slice, plan.mesh, rank);
}

// Returns the messages of the sharded output layer (its input, softmax statistics and its input's gradient) and of the
// sharded embedding.
std::vector<Messages> vocabulary_messages(const Pipeline& plan, int rank, int64_t sequences) {
  const int element = dtype_bytes(plan.config.training.dtype), here = plan.pipeline_rank(rank);
  VocabularyShape shape{.tokens = sequences * plan.num_token_positions(rank),
                        .stream = volume(plan.stream_shape(rank, sequences)),
                        .element_bytes = element,
                        .ranks = plan.mesh.axis_size(kPipeline),
                        .root = plan.stages.back().owner,
                        .over_nccl = uses_nccl(plan.config)};
  std::vector<Messages> messages =
      output_traffic(vocabulary_algorithm(plan.vocabulary), make_output_loss(plan.config), shape, here);
  shape.root = plan.stages.front().owner;
  for (Messages& m : input_traffic(shape, here)) messages.push_back(std::move(m));
  return messages;
}

}  // namespace

MicrobatchCostsBySize microbatch_costs(const Pipeline& plan, int rank, const std::vector<int64_t>& sizes) {
  MicrobatchCostsBySize costs;
  for (const int64_t sequences : sizes) {
    const TensorShape shape = tensor_shape_of(plan, rank, sequences);
    MicrobatchCosts& own = costs[sequences];
    own.memory = microbatch_memory(plan, rank, sequences);
    own.stream_bytes = plan.stream_bytes(rank, sequences);
    own.attention = sequence_traffic(plan.sequence, attention_of(plan, sequences), plan.mesh.coord(rank, kUlysses),
                                     plan.mesh.coord(rank, kRing));
    own.tensor = tensor_traffic(plan.tensor, shape, plan.mesh, rank);
    if (plan.vocabulary.empty()) continue;
    own.vocabulary = vocabulary_messages(plan, rank, sequences);
    own.slice = slice_messages(plan, rank, shape);
  }
  return costs;
}

MicrobatchCostsByRank::MicrobatchCostsByRank(const Pipeline& plan) : positions_(plan.mesh, axes_of_activations(plan)) {
  SharedValues<MicrobatchCostsBySize> shared;
  const std::vector<int64_t> sizes = microbatch_sizes(plan);
  for (int position = 0; position < positions_.size(); ++position) {
    costs_.push_back(shared.share(microbatch_costs(plan, positions_.rank_at(position), sizes)));
  }
}

const std::shared_ptr<const MicrobatchCostsBySize>& MicrobatchCostsByRank::of(int rank) const {
  return costs_[static_cast<size_t>(positions_.of(rank))];
}

std::vector<int64_t> microbatch_sizes(const Sharding& sharding) {
  std::set<int64_t> sizes;
  // Shards of the batch have at most two sizes. The first is the largest, and the last the smallest.
  for (const DataShard* shard : {&sharding.data_shards.front(), &sharding.data_shards.back()}) {
    for (const auto& [sequences, count] : microbatch_sizes(*shard)) sizes.insert(sequences);
  }
  return {sizes.begin(), sizes.end()};
}

}  // namespace orthant
