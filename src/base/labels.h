// The label that carries no loss: one number for data, kernels and oracles.
#pragma once

#include <cstdint>

namespace orthant {

/// PyTorch's and Hugging Face's ignore_index.
inline constexpr int64_t kIgnoredLabel = -100;

}  // namespace orthant
