// What a run makes of its values: of a Plan the primitives and the pipeline's stages, of samples tensors.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "comm/comm.h"
#include "data/loader.h"
#include "model/primitives.h"
#include "plan/plan.h"
#include "runtime/model_stages.h"

namespace orthant {

/// How many sequences each has.
std::vector<int64_t> microbatch_sequences(const DataShare& share);

/// What stands on which rank of the pipeline, as the plan says.
ModelPipeline pipeline_of(const Plan& plan, int rank);

/// The rate of a step (the first is 1) under the run file's schedule.
double learning_rate_of(const Config& config, int64_t step);

/// "float32" -> at::kFloat and so on.
at::ScalarType scalar_type(const std::string& dtype);

/// Tensors of some samples: all of them, positions from 0 in each sequence.
Microbatch to_microbatch(const Batch& batch);
/// Their tokens at these places. mask_documents: positions begin anew in each document, and attention stays inside.
Microbatch to_microbatch(const Batch& batch, const std::vector<int64_t>& places, bool mask_documents);

/// The model's primitives as the plan binds them on this rank; or with another cut of the stream.
Primitives primitives_of(const Plan& plan, Comm& comm);
Primitives primitives_of(const Plan& plan, const TensorPlan& tensor, Comm& comm);

}  // namespace orthant
