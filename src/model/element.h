// Access to tensors from the fused kernels: element types, raw pointers and the dispatch over dtypes.
#pragma once

#include "base/errors.h"
#include "model/kernels/element.h"

#include <ATen/core/Tensor.h>

namespace orthant {

/// The dtype of statistics, sums and parameter gradients for tensors of the given dtype: float64 for float64, else
/// float32.
inline at::ScalarType wide(at::ScalarType type) { return type == at::kDouble ? at::kDouble : at::kFloat; }

/// Calls f with a value of the kernels' element type for this tensor. LogicError for a dtype without kernels.
template <class F>
auto by_element(const at::Tensor& t, F f) {
  switch (t.scalar_type()) {
    case at::kFloat: return f(float{});
    case at::kBFloat16: return f(Bf16{});
    case at::kDouble: return f(double{});
    default: throw LogicError(fmt::format("no kernel for {}", c10::toString(t.scalar_type())));
  }
}

/// The tensor's data as the kernel's element type; null for an undefined tensor.
template <class T>
const T* in(const at::Tensor& t) {
  return t.defined() ? static_cast<const T*>(t.const_data_ptr()) : nullptr;
}
template <class T>
T* out(const at::Tensor& t) {
  return t.defined() ? static_cast<T*>(t.mutable_data_ptr()) : nullptr;
}

}  // namespace orthant
