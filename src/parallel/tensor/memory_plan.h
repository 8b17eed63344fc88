// What products hold for a while on a rank, whatever part of a weight and of the residual stream it has.
#pragma once

#include "parallel/tensor/traffic_plan.h"

namespace orthant {

/// Of a product's passes, in bytes, the most that each holds beside its input and its output's gradient.
struct ProductBytes {
  int64_t forward = 0;      // with its output
  int64_t backward = 0;     // with its input's gradient
  int64_t for_input = 0;    // the same where the weight's gradient is left to W
  int64_t for_weights = 0;  // in W
};

/// Of one microbatch.
struct ProductMemory {
  int64_t stream = 0;  // bytes of this rank's part of the residual stream
  ProductBytes qkv, attended, gate_up, down;  // by what they make or read
  ProductBytes embedding;                     // forward and backward
  int64_t loss = 0;  // beside what it keeps, where the last norm's output stands for the gradient that it makes
};
ProductMemory product_memory(const TensorPlan& plan, const TensorShape& shape);

}  // namespace orthant
