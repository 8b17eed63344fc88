// Copies the values of a Plan and of a Batch into the structures that the runtime and the model use.
#include "runtime/from_plan.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>

#include "config/from_config.h"
#include "model/cuda_device.h"
#include "model/lr_schedule.h"
#include "model/token_checks.h"
#include "parallel/sequence/run.h"
#include "parallel/tensor/muon.h"
#include "parallel/tensor/run.h"
#include "schedule/send_completions.h"

namespace orthant {
namespace {

at::Tensor tensor_of(const std::vector<int64_t>& values, at::IntArrayRef shape) {
  at::Tensor t = at::empty(shape, at::kLong);
  std::copy(values.begin(), values.end(), t.mutable_data_ptr<int64_t>());
  return t;
}

// The rank's chunks of its buckets, in ascending order.
FlatChunks owned_chunks(const Mesh& mesh, const std::vector<GradientBucket>& buckets, int rank) {
  FlatChunks chunks;
  for (const GradientBucket& bucket : buckets) {
    const Range chunk = bucket.chunk(mesh.group_index(rank, bucket.axes));
    if (chunk.size() > 0) chunks.emplace_back(chunk.begin, chunk.end);
  }
  std::ranges::sort(chunks);
  return chunks;
}

// The part of the states that a rank keeps. A bucket is a segment.
KeptStates kept_states(const Plan& plan, const std::vector<GradientBucket>& buckets, int rank) {
  KeptStates kept;
  kept.gradients = plan.kept_gradients(), kept.values = plan.kept_values();
  if (plan.shards_optimizer()) kept.owned = owned_chunks(plan.mesh, buckets, rank);
  for (const GradientBucket& bucket : buckets) kept.segments.emplace_back(bucket.elements.begin, bucket.elements.end);
  return kept;
}

std::shared_ptr<const Orthogonalizer> orthogonalizer_of(const Plan& plan, Comm& comm) {
  if (plan.matrix_axes.empty()) return nullptr;
  return std::make_shared<ShardedOrthogonalizer>(comm, plan.matrix_axes, plan.parameters, plan.layouts);
}

}  // namespace

ModelPipeline pipeline_of(const Plan& plan, int rank) {
  return {.stages = plan.stages,
          .buckets = plan.buckets_by_stage(),
          .units = plan.units(),
          .send_completions = send_completions(plan.schedule),
          .stream_shape = [&plan, rank](int64_t sequences) { return plan.stream_shape(rank, sequences); },
          .vocabulary = {.algorithm = plan.vocabulary,
                         .slice = {.rows = plan.vocabulary_rows(rank), .vocabulary = plan.architecture.vocab_size},
                         .first = plan.stages.front().owner,
                         .last = plan.stages.back().owner,
                         .tensor = plan.tensor,
                         .width = plan.architecture.hidden_size}};
}

std::vector<int64_t> microbatch_sequences(const DataShard& data_shard) {
  std::vector<int64_t> sequences;
  for (const Range& range : data_shard.microbatches) sequences.push_back(range.size());
  return sequences;
}

at::ScalarType scalar_type(const std::string& dtype) {
  return dtype == "bfloat16" ? at::kBFloat16 : dtype == "float64" ? at::kDouble : at::kFloat;
}

at::Device device_of(const Config& config) {
  return config.run.device == "cuda" ? selected_cuda_device() : at::Device(at::kCPU);
}

CommOptions transport_options(const Config& config) {
  const at::Device device = device_of(config);
  CommOptions options{.transport = config.run.transport == "nccl" ? "auto" : config.run.transport};
  options.through_host_memory = device.is_cuda() && !uses_nccl(config);
  if (uses_nccl(config)) options.gpu = identify_cuda_device(device);
  return options;
}

Microbatch on_device(Microbatch microbatch, at::Device device, int64_t vocabulary) {
  if (device.is_cpu()) return microbatch;
  check_tokens(microbatch.tokens_BT, vocabulary);
  check_labels(microbatch.labels_BT, vocabulary);
  for (at::Tensor* tensor : {&microbatch.tokens_BT, &microbatch.labels_BT, &microbatch.positions_BT}) {
    *tensor = copy_to_device(*tensor, device);
  }
  return microbatch;
}

Microbatch to_microbatch(const Batch& batch) {
  std::vector<int64_t> positions(static_cast<size_t>(batch.seq_len));
  std::iota(positions.begin(), positions.end(), 0);
  return to_microbatch(batch, positions, false);
}

Microbatch to_microbatch(const Batch& batch, const std::vector<int64_t>& positions, bool mask_documents) {
  Microbatch microbatch;
  const int64_t B = batch.sequences, T = batch.seq_len;
  const auto held = static_cast<int64_t>(positions.size());
  microbatch.sequence_positions_T = tensor_of(positions, {held});
  const auto here = [&](const at::Tensor& all_BT) {
    return held == T ? all_BT : all_BT.index_select(1, microbatch.sequence_positions_T);
  };
  microbatch.tokens_BT = here(tensor_of(batch.tokens, {B, T}));
  microbatch.labels_BT = here(tensor_of(batch.labels, {B, T}));
  microbatch.sequence_length = T;
  microbatch.samples_B = tensor_of(batch.sample_ids, {B});
  // A copy, because positions change below: contiguous() of a single sequence would return the memory of
  // sequence_positions_T.
  microbatch.positions_BT = microbatch.sequence_positions_T.unsqueeze(0).repeat({B, 1});
  if (!mask_documents && batch.lengths.empty()) return microbatch;
  auto packing = std::make_shared<Packing>(Packing{.document_starts = {}, .lengths = batch.lengths});
  if (mask_documents) packing->document_starts = batch.document_starts;
  microbatch.packing = std::move(packing);
  if (!mask_documents) return microbatch;
  auto* position = microbatch.positions_BT.mutable_data_ptr<int64_t>();
  for (const auto& starts : batch.document_starts) {
    for (const int64_t place : positions)
      *position++ = place - *(std::upper_bound(starts.begin(), starts.end(), place) - 1);
  }
  return microbatch;
}

Primitives primitives_of(const Plan& plan, Comm& comm) {
  return primitives_of(plan, sequence_attention(comm, plan.sequence), comm);
}

Primitives primitives_of(const Plan& plan, AttentionCore attention, Comm& comm) {
  const TensorPlan& tensor = plan.tensor;
  auto core = std::make_shared<AttentionCore>(std::move(attention));
  if (tensor.rows * tensor.columns == 1) return fused_primitives(std::move(core));
  std::vector<UnshardedWeight> unsharded_weights;
  for (const auto& [first, end] : flat_layout(plan.parameters).members) {
    UnshardedWeight& weight = unsharded_weights.emplace_back();
    const auto& shape = plan.parameters[first].shape;
    for (size_t i = first; i < end; ++i) weight.out += plan.parameters[i].shape[0];
    weight.in = shape.size() > 1 ? shape[1] : 1;
    weight.heads = heads_made_by(plan.architecture, plan.parameters[first]);
    if (plan.parameters[first].role == ParameterRole::to_stream)
      weight.stationary = stationary_of(tensor, {.in = weight.in, .out = weight.out, .to_stream = true});
  }
  return tensor_primitives(comm, tensor, std::move(unsharded_weights), plan.architecture.hidden_size, std::move(core));
}

SessionParts session_parts(const Plan& plan, Comm& comm) {
  const Config& config = plan.config;
  const int rank = comm.rank();
  std::vector<GradientBucket> buckets = plan.buckets_of(rank);
  KeptStates kept = kept_states(plan, buckets, rank);
  return {.architecture = plan.architecture,
          .parameters = plan.parameters_of(rank),
          .primitives = primitives_of(plan, comm),
          .options = {.recompute = make_recomputation(config),
                      .seed = static_cast<uint64_t>(config.training.seed),
                      .label_smoothing = config.training.label_smoothing,
                      .z_loss = config.training.z_loss},
          .pipeline = pipeline_of(plan, rank),
          .row = plan.row(rank),
          .buckets = std::move(buckets),
          .kept = std::move(kept),
          .data_shard = plan.data_shard(rank),
          .reports_late = reports_late(config),
          .orthogonalizer = orthogonalizer_of(plan, comm),
          .to_microbatch = [positions = plan.token_positions(rank), masks = config.data.mask_documents,
                            device = device_of(config), vocabulary = plan.architecture.vocab_size](const Batch& batch) {
            return on_device(to_microbatch(batch, positions, masks), device, vocabulary);
          }};
}

double learning_rate_of(const Config& c, int64_t step) {
  return LrSchedule{.lr = c.optimizer.lr,
                    .steps = c.training.steps,
                    .warmup_steps = c.lr_scheduler.warmup_steps,
                    .decay_type = c.lr_scheduler.decay_type,
                    .decay_ratio = c.lr_scheduler.decay_ratio,
                    .min_lr_factor = c.lr_scheduler.min_lr_factor}
      .at(step);
}

}  // namespace orthant
