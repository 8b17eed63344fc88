// From tensors to the kernels' raw pointers: element types, and the dispatch over them.
#pragma once

#include "base/errors.h"
#include "model/kernels/element.h"

#include <ATen/core/Tensor.h>

namespace orthant {

/// The dtype in which statistics, sums and gradients of parameters of such a tensor are kept.
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

/// A tensor's memory as the kernels see it; null for an undefined one.
template <class T>
const T* in(const at::Tensor& t) {
  return t.defined() ? static_cast<const T*>(t.const_data_ptr()) : nullptr;
}
template <class T>
T* out(const at::Tensor& t) {
  return t.defined() ? static_cast<T*>(t.mutable_data_ptr()) : nullptr;
}

}  // namespace orthant
