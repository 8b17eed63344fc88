// What a microbatch keeps and needs for a while on a rank of a tensor mesh.
#pragma once

#include "model/architecture.h"
#include "parallel/tensor/traffic_plan.h"

namespace orthant {

/// As activation_bytes() for one device; attention's bytes are those of this column's heads.
ActivationBytes tensor_activation_bytes(const Architecture& a, const TensorPlan& plan, const TensorShape& shape,
                                        bool recompute, const AttentionBytes& attention);

}  // namespace orthant
