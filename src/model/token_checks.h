// Checks of token ids and labels. Kernels of a GPU do not check them, and reading them there would make the host wait
// for the device. So they are checked on the host before they are copied to a GPU, and by the layers on a CPU.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace orthant {

/// Throws DataError for a token outside the vocabulary. Does not read tokens on a GPU.
void check_tokens(const at::Tensor& tokens, int64_t vocabulary);

/// Throws DataError for a label that is neither -100 nor inside the vocabulary. Does not read labels on a GPU.
void check_labels(const at::Tensor& labels, int64_t vocabulary);

}  // namespace orthant
