// Planted faults, the negative controls of checks: with_fault() changes one part of a Session before it is built.
#pragma once

#include "parallel/tensor/run.h"
#include "runtime/verify.h"
#include "tests/support/faulty_primitives.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace orthant {

enum class Fault {
  none,
  dropped_reduction,      // the last gradient bucket is never all-reduced
  stray_mean,             // gradients are divided by the number of ranks that sum them
  wrong_shard,            // the second shard of a batch is replaced by the first
  local_samples,          // samples, the keys of dropout, are numbered from 0 on each rank
  local_positions,        // rotary positions are counted from 0 on each rank
  swapped_groups,         // tensor mesh: weights are sharded as if rows were columns
  dropped_depth,          // tensor mesh: gradients are not summed over depth
  mean_over_rows,         // tensor mesh: gradients summed over rows are divided by the rows
  bias_of_every_column,   // tensor mesh: every column adds the bias before the sum over columns
  bias_summed_twice,      // tensor mesh: the gradient of a bias is summed twice
  exchanged_microbatches, // pipeline: the first stage computes microbatch 1 where the next stage expects microbatch 0
  lost_weight_gradients,  // the linear layers lose the weight gradients of the first microbatch
  shifted_rows,           // pipeline: a rank takes its rows of the vocabulary for those one further on
  plain_loss              // no logit softcapping, label smoothing and z-loss
};

/// The rank at this rank's place if the coordinates of row and column are exchanged.
inline int with_exchanged_row_and_column(const Plan& plan, int rank) {
  const int row = plan.mesh.coord(rank, kRow), column = plan.mesh.coord(rank, kColumn);
  return plan.mesh.rank_at(plan.mesh.rank_at(rank, kRow, column), kColumn, row);
}

/// Exchanges microbatches 0 and 1 in the Actions of stage 0. Its messages carry no number, so the next stage takes the
/// output of microbatch 1 for that of microbatch 0.
inline std::vector<Action> with_exchanged_microbatches(std::vector<Action> row) {
  for (Action& action : row) {
    const int microbatch = microbatch_of(action);
    if (action.stage == 0 && (microbatch == 0 || microbatch == 1)) action.microbatch = 1 - microbatch;
  }
  return row;
}

/// The primitives, with the fault if it concerns them. The plan must outlive them.
inline Primitives with_fault(Primitives primitives, const Plan& plan, Fault fault) {
  const auto info_of = [&plan](const Weight& weight) -> const ParameterInfo& {
    return plan.parameters[weight.owner->flat().members[static_cast<size_t>(weight.index)].first];
  };
  const auto group_of = [&plan, info_of](const Weight& weight) -> const ParameterGroup& {
    return plan.groups[static_cast<size_t>(info_of(weight).group)];
  };
  switch (fault) {
    case Fault::stray_mean:
      return with_scaled_gradients(std::move(primitives), 1.0 / plan.mesh.group_size(plan.gradient_axes));
    case Fault::mean_over_rows:
      return with_scaled_matrix_gradients(std::move(primitives), [&plan, group_of](const Weight& weight) {
        return std::ranges::count(group_of(weight).split, kRow) > 0 ? 1.0 / plan.tensor.rows : 1.0;
      });
    case Fault::bias_summed_twice:
      return with_scaled_bias_gradients(std::move(primitives), [&plan, group_of](const Weight& bias) -> double {
        return plan.mesh.group_size(group_of(bias).reduced);
      });
    case Fault::bias_of_every_column:
      return with_bias_of_every_column(
          std::move(primitives),
          [info_of](const Weight& weight) { return info_of(weight).role == ParameterRole::to_stream; },
          plan.tensor.columns);
    case Fault::lost_weight_gradients:
      return without_first_weight_gradients(std::move(primitives));
    default:
      return primitives;
  }
}

/// The microbatch that is made of the batch, with the fault if it concerns microbatches.
inline Microbatch with_fault(Microbatch microbatch, const Plan& plan, int rank, Fault fault) {
  if (fault == Fault::local_samples) {
    microbatch.samples_B.remainder_(plan.config.training.global_batch_size).sub_(plan.data_shard(rank).sequences.begin);
  }
  if (fault == Fault::local_positions) {
    microbatch.positions_BT.copy_(at::arange(microbatch.positions_BT.size(1)));
  }
  return microbatch;
}

/// The parts of the rank's Session, with the fault. Plan and Comm must outlive them.
inline SessionParts parts_with_fault(const Plan& plan, Comm& comm, Fault fault) {
  const int rank = comm.rank();
  SessionParts parts = session_parts(plan, comm);
  parts.primitives = with_fault(std::move(parts.primitives), plan, fault);
  parts.to_microbatch = [&plan, rank, fault, right = std::move(parts.to_microbatch)](const Batch& batch) {
    return with_fault(right(batch), plan, rank, fault);
  };
  if (fault == Fault::dropped_reduction) parts.buckets.back().elements = {};
  if (fault == Fault::wrong_shard && plan.data_shard_index(rank) == 1) parts.data_shard = plan.data_shards[0];
  if (fault == Fault::swapped_groups) {
    parts.parameters = plan.parameters_of(with_exchanged_row_and_column(plan, rank));
  }
  if (fault == Fault::dropped_depth) {
    for (GradientBucket& bucket : parts.buckets) std::erase(bucket.axes, kDepth);
  }
  if (fault == Fault::exchanged_microbatches) {
    parts.row = with_exchanged_microbatches(std::move(parts.row));
    parts.pipeline.send_completions = {};  // those of the plan's row; without them, a send completes by the row's end
  }
  if (fault == Fault::shifted_rows) {
    Range& rows = parts.pipeline.vocabulary.slice.rows;
    rows = {rows.begin + 1, rows.end + 1};
  }
  if (fault == Fault::plain_loss) {
    parts.architecture.final_logit_softcapping = 0;
    parts.options.label_smoothing = parts.options.z_loss = 0;
  }
  return parts;
}

/// As verify_layout(), for a layout with the fault. The oracle has no fault.
inline VerifyReport verify_with_fault(const Plan& plan, const TrainingData& data, int64_t steps, Fault fault) {
  return verify_against(trace_oracle(plan, data, steps), plan, data, {},
                        [fault](const Plan& own, Comm& comm) { return parts_with_fault(own, comm, fault); });
}

}  // namespace orthant
