// Temporary memory of matrix products on a rank, for any sharding of weights and of the residual stream.
#pragma once

#include "parallel/tensor/traffic_plan.h"

namespace orthant {

/// Peak bytes of each pass of a product, in addition to its input and its output's gradient.
struct ProductBytes {
  int64_t forward = 0;      // its output included
  int64_t backward = 0;     // its input's gradient included
  int64_t for_input = 0;    // in I, its input's gradient included; the weight's gradient is left to W
  int64_t for_weights = 0;  // in W
};

/// Bytes for one microbatch.
struct ProductMemory {
  int64_t stream = 0;  // this rank's shard of the residual stream
  std::vector<ProductBytes> linears;          // of the block's linear operations, in order
  ProductBytes embedding;                     // only forward and backward are set
  // Peak of the loss in addition to its kept tensors. The bytes kept for the gradient that the loss makes stand for the
  // last norm's output meanwhile.
  int64_t loss = 0;
};
ProductMemory product_memory(const TensorPlan& plan, const TensorShape& shape);

}  // namespace orthant
