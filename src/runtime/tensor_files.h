// Tensors in safetensors files.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <span>
#include <string>

#include "checkpoint/safetensors.h"

namespace orthant {

/// The element type of files for tensors of this type: F64, F32, BF16, F16 or I64. LogicError for other types.
Dtype dtype_of(at::ScalarType type);
/// The tensor's memory. It must be contiguous and on the CPU.
std::span<const std::byte> bytes_of(const at::Tensor& tensor);
/// A tensor of a file as a view into the mapping, which must outlive it. `source` names the file in messages. Throws
/// DataError if there is no such tensor, or if its type is none of these.
at::Tensor tensor_of_file(const TensorBytes& stored, const std::string& source);

}  // namespace orthant
