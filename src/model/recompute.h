// Recomputation of a range of operations that ends with a linear layer, under autograd.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <utility>

namespace orthant {

/// The functions of a recomputed range. They must be pure functions of their arguments and of captured constants, and
/// must stay valid until backward.
struct RangeFunctions {
  struct Values {
    at::Tensor x;       // input of the last linear layer
    at::Tensor stream;  // the residual stream with all products but the last; undefined unless the range has a norm
  };
  /// Runs the range up to the last linear layer.
  std::function<Values(const at::Tensor& input)> before_product;
  /// The last linear layer; and its backward alone, which accumulates the weight's gradient and returns that of x.
  std::function<at::Tensor(const at::Tensor& x)> product;
  std::function<at::Tensor(const at::Tensor& x, const at::Tensor& dy)> product_backward;
};

/// Computes the range and returns the product and the stream. It keeps only the input. Backward runs before_product()
/// again, with autograd, and never the product.
std::pair<at::Tensor, at::Tensor> recompute(RangeFunctions range, const at::Tensor& input);

}  // namespace orthant
