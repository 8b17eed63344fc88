// The label value of tokens that do not contribute to the loss. The data loader, the kernels and the tests share it.
#pragma once

#include <cstdint>

namespace orthant {

/// Same value as ignore_index in PyTorch and Hugging Face.
inline constexpr int64_t kIgnoredLabel = -100;

}  // namespace orthant
