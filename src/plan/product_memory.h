// What products hold for a while on a rank, whatever part of a weight and of the residual stream it has.
#pragma once

#include "parallel/tensor/traffic_plan.h"

namespace orthant {

/// Of one microbatch, in bytes, at most. Backward, by the product's name: beside its input and its output's gradient,
/// with its input's gradient.
struct ProductMemory {
  int64_t stream = 0;  // this rank's part of the residual stream
  int64_t qkv = 0, attended = 0, gate_up = 0, down = 0;
  int64_t down_forward = 0;  // beside its input, with its output
  int64_t loss = 0;  // beside what it keeps, where the last norm's output stands for the gradient that it makes
};
ProductMemory product_memory(const TensorPlan& plan, const TensorShape& shape);

}  // namespace orthant
