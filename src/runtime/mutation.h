// Deliberate mistakes, planted in the values that a Session is built from or in its computation. They are the negative
// controls of `verify`.
#pragma once

#include <cstdint>
#include <vector>

#include "comm/comm.h"
#include "model/transformer.h"
#include "plan/plan.h"
#include "runtime/model_stages.h"

namespace orthant {

/// The mistakes that `verify` must catch.
enum class Mutation {
  none,                  // no mistake
  dropped_reduction,     // the last gradient bucket is never all-reduced
  stray_mean,            // gradients are divided by the number of ranks that summed them
  wrong_shard,           // the second shard of a batch is replaced by the first
  local_numbers,         // samples, the keys of dropout, are numbered from 0 on each rank
  local_positions,       // rotary positions are counted from 0 on each rank
  swapped_groups,        // tensor mesh: weights are sharded as if rows were columns
  dropped_depth,         // tensor mesh: gradients are not summed over depth
  mean_over_rows,        // tensor mesh: gradients summed over rows are divided by the rows
  bias_of_every_column,  // tensor mesh: every column adds the bias before the sum over columns
  bias_summed_twice,     // tensor mesh: the gradient of a bias is summed twice
  late_messages,         // pipeline: a stage reads the output of the previous microbatch
  dropped_weights,       // pipeline: W of the first microbatch is skipped
  shifted_rows,          // pipeline: a rank takes its rows of the vocabulary for those one further on
  plain_loss             // no logit softcapping, label smoothing and z-loss
};

/// The rank whose weight shards this rank holds: itself, except under swapped_groups.
int holder(const Plan& plan, int rank, Mutation mutation);

/// Returns the value with the mistake planted, or unchanged if the mistake does not concern it.
Architecture spoiled(Architecture architecture, Mutation mutation);
Transformer::Options spoiled(Transformer::Options options, Mutation mutation);
Primitives spoiled(Primitives primitives, const Plan& plan, Mutation mutation);
ModelPipeline spoiled(ModelPipeline pipeline, Mutation mutation);
std::vector<GradientBucket> spoiled(std::vector<GradientBucket> buckets, Mutation mutation);
/// The shard of the batch at `index` of the plan.
DataShard data_shard_with_mutation(const Plan& plan, int index, Mutation mutation);
/// first_sample: global number of the first sample in this rank's shard of the step.
Microbatch spoiled(Microbatch batch, int64_t first_sample, Mutation mutation);
/// Plants the mistakes that concern summed gradients: stray_mean, bias_summed_twice and mean_over_rows.
void mutate_gradients(Weights& weights, const Plan& plan, Mutation mutation);

}  // namespace orthant
