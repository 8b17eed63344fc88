// Plants the mistakes of mutation.h. Each function changes one value; without its mutation, it returns the value
// unchanged.
#include "runtime/mutation.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "parallel/tensor/run.h"

namespace orthant {

// Exchanges the row and column coordinates.
int holder(const Plan& plan, int rank, Mutation mutation) {
  if (mutation != Mutation::swapped_groups) return rank;
  const int row = plan.mesh.coord(rank, kRow), column = plan.mesh.coord(rank, kColumn);
  return plan.mesh.rank_at(plan.mesh.rank_at(rank, kRow, column), kColumn, row);
}

Architecture spoiled(Architecture architecture, Mutation mutation) {
  if (mutation == Mutation::plain_loss) architecture.final_logit_softcapping = 0;
  return architecture;
}

Transformer::Options spoiled(Transformer::Options options, Mutation mutation) {
  if (mutation == Mutation::plain_loss) options.label_smoothing = options.z_loss = 0;
  return options;
}

// The bias is added `columns` times in all, as if each column added it before the sum.
Primitives spoiled(Primitives primitives, const Plan& plan, Mutation mutation) {
  if (mutation != Mutation::bias_of_every_column) return primitives;
  primitives.linear = [&plan, linear = std::move(primitives.linear)](const at::Tensor& x, const Weight& weight) {
    const at::Tensor y = linear(x, weight);
    const size_t first = weight.owner->flat().members[static_cast<size_t>(weight.index)].first;
    if (weight.bias == nullptr || plan.parameters[first].role != ParameterRole::to_stream) return y;
    return y + weight.bias->value.detach() * (plan.tensor.columns - 1);
  };
  return primitives;
}

ModelPipeline spoiled(ModelPipeline pipeline, Mutation mutation) {
  Range& rows = pipeline.vocabulary.slice.rows;
  if (mutation == Mutation::shifted_rows) rows = {rows.begin + 1, rows.end + 1};
  return pipeline;
}

std::vector<GradientBucket> spoiled(std::vector<GradientBucket> buckets, Mutation mutation) {
  if (mutation != Mutation::dropped_depth) return buckets;
  for (GradientBucket& bucket : buckets) std::erase(bucket.axes, kDepth);
  return buckets;
}

DataShard data_shard_with_mutation(const Plan& plan, int index, Mutation mutation) {
  return plan.data_shards[static_cast<size_t>(mutation == Mutation::wrong_shard && index == 1 ? 0 : index)];
}

Microbatch spoiled(Microbatch batch, int64_t first_sample, Mutation mutation) {
  if (mutation == Mutation::local_numbers) batch.samples_B.sub_(first_sample);
  if (mutation == Mutation::local_positions) batch.positions_BT.copy_(at::arange(batch.positions_BT.size(1)));
  return batch;
}

void mutate_gradients(Weights& weights, const Plan& plan, Mutation mutation) {
  if (mutation == Mutation::stray_mean) weights.gradients().div_(plan.mesh.group_size(plan.gradient_axes));
  for (size_t p = 0; p < plan.parameters.size() && mutation == Mutation::bias_summed_twice; ++p) {
    const ParameterInfo& parameter = plan.parameters[p];
    const auto& summed = plan.groups[static_cast<size_t>(parameter.group)].reduced;
    if (parameter.is_bias()) weights.gradient(p).mul_(plan.mesh.group_size(summed));
  }
  if (mutation != Mutation::mean_over_rows) return;
  for (size_t group = 0; group < plan.groups.size(); ++group) {
    const auto& split = plan.groups[group].split;
    if (std::ranges::find(split, kRow) == split.end()) continue;
    const auto [begin, end] = weights.flat().groups[group];
    weights.gradients().narrow(0, begin, end - begin).div_(plan.tensor.rows);
  }
}

}  // namespace orthant
