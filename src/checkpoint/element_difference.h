// Compares the elements of two tensors of the same dtype, without torch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "checkpoint/safetensors.h"

namespace orthant {

/// How the elements of two tensors differ. Elements differ if their bytes do, so that 0 and -0 differ by 0.
struct ElementDifference {
  int64_t num_elements = 0;  // for dtypes of less than 8 bits: bytes
  int64_t num_different = 0;
  /// Largest absolute difference of two elements that differ, converted to float64. It is infinite if one of the two
  /// elements alone is NaN, or if they are different infinities; two NaNs differ by 0. It has no value for dtypes other
  /// than F64, F32, BF16 and F16.
  std::optional<double> largest;
};

/// Compares element by element. LogicError if the sizes are not equal, or are not a whole number of elements.
ElementDifference compare_elements(Dtype dtype, std::span<const std::byte> a, std::span<const std::byte> b);

}  // namespace orthant
