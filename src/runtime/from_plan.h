// Builds the runtime's objects from values: primitives and pipeline stages from a Plan, tensors from samples.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/comm.h"
#include "data/loader.h"
#include "model/attention_core.h"
#include "model/muon.h"
#include "model/transformer.h"
#include "plan/plan.h"
#include "runtime/model_stages.h"

namespace orthant {

/// Number of sequences in each microbatch.
std::vector<int64_t> microbatch_sequences(const DataShard& data_shard);

/// The pipeline as this rank sees it: stages, buckets, send completions, stream shapes and vocabulary slice.
ModelPipeline pipeline_of(const Plan& plan, int rank);

/// Learning rate of a step (the first step is 1) under the run file's schedule.
double learning_rate_of(const Config& config, int64_t step);

/// Maps a dtype's name to its libtorch type: "bfloat16" to at::kBFloat16, "float64" to at::kDouble, any other name to
/// at::kFloat.
at::ScalarType scalar_type(const std::string& dtype);

/// The device of all tensors of this rank: for "cuda", the one that its thread has selected (cuda_device.h).
at::Device device_of(const Config& config);

/// The options of a rank's Comm that say how messages travel. On GPUs, the thread must have selected its device.
CommOptions transport_options(const Config& config);

/// The microbatch with its tokens, labels and positions on the device. The keys of dropout stay on the CPU, which reads
/// them. For a GPU it first checks tokens and labels (model/token_checks.h); on the CPU the layers do.
Microbatch on_device(Microbatch microbatch, at::Device device, int64_t vocabulary);

/// Tensors of whole samples. Positions start at 0 in each sequence, and documents are not masked.
Microbatch to_microbatch(const Batch& batch);
/// Tensors of the tokens at these positions of each sample. With mask_documents, rotary positions restart in each
/// document, and attention stays inside it.
Microbatch to_microbatch(const Batch& batch, const std::vector<int64_t>& positions, bool mask_documents);

/// The model's primitives as the plan binds them on this rank. The second form has another attention core.
Primitives primitives_of(const Plan& plan, Comm& comm);
Primitives primitives_of(const Plan& plan, AttentionCore core, Comm& comm);

/// The values that one rank's Session is built from.
struct SessionParts {
  Architecture architecture;
  std::vector<ParameterInfo> parameters;  // with the ranges that this rank holds
  Primitives primitives;
  Transformer::Options options;
  ModelPipeline pipeline;
  std::vector<Action> row;              // of a training step
  std::vector<GradientBucket> buckets;  // with their ranges and chunks in this rank's gradient buffer
  KeptStates kept;                      // the part of weights, gradients and optimizer state that this rank keeps
  DataShard data_shard;
  bool reports_late = false;                             // see reports_late(Config)
  std::shared_ptr<const Orthogonalizer> orthogonalizer;  // for Muon; null if the rank has full matrices
  std::function<Microbatch(const Batch&)> to_microbatch;  // keeps only the tokens that this rank holds
};
/// The parts as the plan has them. Plan and Comm must outlive them.
SessionParts session_parts(const Plan& plan, Comm& comm);

}  // namespace orthant
