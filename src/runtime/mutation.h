// Mistakes planted on purpose, in the values that a Session is made of or in what its parts do with them.
#pragma once

#include <cstdint>
#include <vector>

#include "comm/comm.h"
#include "model/transformer.h"
#include "plan/plan.h"
#include "runtime/model_stages.h"

namespace orthant {

/// Mistakes that `verify` must catch, planted on purpose: the negative controls. Five are of tensor meshes: weights
/// held as if rows were columns, gradients not summed over depth, and divided by the rows that summed them; a bias
/// added by every column to what they sum, and its gradient summed twice. Three are of pipelines: a stage gets the
/// output of the microbatch before, the first microbatch's W is left out, and ranks take their rows of the vocabulary
/// for those one further on. The last leaves capping, smoothing and z-loss out.
enum class Mutation {
  none,
  dropped_reduction,
  stray_mean,
  wrong_shard,
  local_numbers,
  local_positions,
  swapped_groups,
  dropped_depth,
  mean_over_rows,
  bias_of_every_column,
  bias_summed_twice,
  late_messages,
  dropped_weights,
  shifted_rows,
  plain_loss
};

/// Whose part of the weights the rank holds: its own, but for a mutation.
int holder(const Plan& plan, int rank, Mutation mutation);

/// The value, as the mutation has it.
Architecture spoiled(Architecture architecture, Mutation mutation);
Transformer::Options spoiled(Transformer::Options options, Mutation mutation);
Primitives spoiled(Primitives primitives, const Plan& plan, Mutation mutation);
ModelPipeline spoiled(ModelPipeline pipeline, Mutation mutation);
std::vector<GradientBucket> spoiled(std::vector<GradientBucket> buckets, Mutation mutation);
/// The share at an index of the plan.
DataShare spoiled_share(const Plan& plan, int index, Mutation mutation);
/// first_sample: of this rank's share in the step.
Microbatch spoiled(Microbatch batch, int64_t first_sample, Mutation mutation);
void spoil_gradients(Weights& weights, const Plan& plan, Mutation mutation);

}  // namespace orthant
