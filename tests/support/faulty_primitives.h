// Primitives with wrong weight gradients. The values of the forward pass and the gradients of inputs stay right.
#pragma once

#include "model/primitives.h"

#include <ATen/ATen.h>

#include <functional>
#include <memory>
#include <set>
#include <utility>

namespace orthant {

/// Returns a tensor with the value of `value`, whose backward is that of `path`.
inline at::Tensor with_value(const at::Tensor& value, const at::Tensor& path) {
  return value.detach() + (path - path.detach());
}

/// Returns x. Backward multiplies its gradient by the factor.
inline at::Tensor scale_gradient(const at::Tensor& x, double factor) { return with_value(x, x * factor); }

/// Runs the linear layer without autograd.
inline at::Tensor value_of_linear(const Primitives& inner, const at::Tensor& x, const Weight& weight) {
  const at::NoGradGuard no_grad;
  return inner.linear(x, weight);
}

/// Multiplies all gradients by the factor.
inline Primitives with_scaled_gradients(Primitives inner, double factor) {
  Primitives faulty = inner;
  faulty.cross_entropy = [inner, factor](const at::Tensor& x, const Weight& head, Microbatch batch,
                                         const OutputLoss& loss) {
    batch.loss_scale *= factor;
    const at::Tensor scaled = inner.cross_entropy(x, head, batch, loss);
    return with_value(scaled / factor, scaled);
  };
  return faulty;
}

/// Multiplies the gradients of the matrices by factor(weight). A linear layer is linear in the gradient of its output.
/// So that gradient is multiplied by the factor, and the gradient of the input is divided by it.
inline Primitives with_scaled_matrix_gradients(Primitives inner, std::function<double(const Weight&)> factor) {
  Primitives faulty = inner;
  faulty.embedding = [inner, factor](const at::Tensor& tokens, const Weight& table) {
    return scale_gradient(inner.embedding(tokens, table), factor(table));
  };
  faulty.linear = [inner, factor](const at::Tensor& x, const Weight& weight) {
    const double times = factor(weight);
    return scale_gradient(inner.linear(scale_gradient(x, 1 / times), weight), times);
  };
  faulty.cross_entropy = [inner, factor](const at::Tensor& x, const Weight& head, const Microbatch& batch,
                                         const OutputLoss& loss) {
    const double times = factor(head);
    return with_scaled_gradients(inner, times).cross_entropy(scale_gradient(x, 1 / times), head, batch, loss);
  };
  return faulty;
}

/// Multiplies the gradients of the biases by factor(bias): with x / f as input and f dy as gradient of the output, the
/// gradient of the bias is f times as large, and that of the matrix stays the same.
inline Primitives with_scaled_bias_gradients(Primitives inner, std::function<double(const Weight&)> factor) {
  Primitives faulty = inner;
  faulty.linear = [inner, factor](const at::Tensor& x, const Weight& weight) {
    if (weight.bias == nullptr) return inner.linear(x, weight);
    const double times = factor(*weight.bias);
    return with_value(value_of_linear(inner, x, weight), scale_gradient(inner.linear(x / times, weight), times));
  };
  return faulty;
}

/// Multiplies the gradients of learned positions, of the norms' gains and biases, and of the gains of heads, by
/// factor(weight).
inline Primitives with_scaled_norm_gradients(Primitives inner, std::function<double(const Weight&)> factor) {
  Primitives faulty = inner;
  faulty.add_norm = [inner, factor](const std::string& function, const at::Tensor& input, const at::Tensor& residual,
                                    const Weight& gain, double eps) {
    const at::Tensor sum = residual.defined() ? input + residual : input;
    const double times = factor(gain);
    const at::Tensor x = inner.add_norm(function, scale_gradient(sum, 1 / times), {}, gain, eps).first;
    return std::pair(scale_gradient(x, times), sum);
  };
  faulty.add_positions = [inner, factor](const at::Tensor& x, const Microbatch& batch, const Weight& table) {
    const double times = factor(table);
    return scale_gradient(inner.add_positions(scale_gradient(x, 1 / times), batch, table), times);
  };
  faulty.local = [inner, factor](const std::string& function, const at::Tensor& x, const Weight* weight,
                                 const AttentionShape& shape, double eps) {
    if (weight == nullptr) return inner.local(function, x, weight, shape, eps);
    const double times = factor(*weight);
    return scale_gradient(inner.local(function, scale_gradient(x, 1 / times), weight, shape, eps), times);
  };
  return faulty;
}

/// Leaves the first microbatch out of the gradients of the linear layers: backward sees an input of zeros.
inline Primitives without_first_weight_gradients(Primitives inner) {
  Primitives faulty = inner;
  faulty.linear = [inner, seen = std::make_shared<std::set<int>>()](const at::Tensor& x, const Weight& weight) {
    if (!seen->insert(weight.index).second) return inner.linear(x, weight);
    return with_value(value_of_linear(inner, x, weight), inner.linear(x - x.detach(), weight));
  };
  return faulty;
}

/// Adds the bias of a row-parallel layer `columns` times in all, as if each column added it before the sum.
inline Primitives with_bias_of_every_column(Primitives inner, std::function<bool(const Weight&)> is_row_parallel,
                                            int columns) {
  Primitives faulty = inner;
  faulty.linear = [inner, is_row_parallel, columns](const at::Tensor& x, const Weight& weight) {
    const at::Tensor y = inner.linear(x, weight);
    if (weight.bias == nullptr || !is_row_parallel(weight)) return y;
    return y + weight.bias->value.detach() * (columns - 1);
  };
  return faulty;
}

}  // namespace orthant
