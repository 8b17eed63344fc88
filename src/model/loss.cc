#include "model/loss.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <span>

#include "base/errors.h"
#include "model/device_kernels.h"
#include "model/element.h"
#include "model/linear.h"
#include "model/token_checks.h"

namespace orthant {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Writes the loss of each row of a chunk; overwrites logits with gradients if with_gradient.
void compute_losses(const at::Tensor& logits, const at::Tensor& labels, double scale, const OutputLoss& loss,
                    bool with_gradient, const at::Tensor& losses) {
  by_element(logits, [&]<class T>(T) {
    softmax_cross_entropy<T>(logits.device(), {.logits = out<T>(logits),
                                               .labels = in<int64_t>(labels),
                                               .rows = logits.size(0),
                                               .vocab = logits.size(1),
                                               .scale = scale,
                                               .losses = out<double>(losses),
                                               .write_gradient = with_gradient,
                                               .loss = loss});
  });
}

struct CrossEntropy : torch::autograd::Function<CrossEntropy> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& head, int64_t weight,
                            const at::Tensor& labels_BT, double scale, const OutputLoss& loss, bool with_gradient) {
    const at::Tensor x_NC = x.reshape({-1, x.size(-1)}), labels = labels_BT.flatten();
    const int64_t rows = x_NC.size(0), chunk = loss_chunk_rows(head.size(0), x.is_cuda());
    const auto& w = *reinterpret_cast<const Weight*>(weight);
    at::Tensor dx = with_gradient ? at::empty_like(x_NC) : at::Tensor();
    const auto numbers = x.options().dtype(at::kDouble).requires_grad(false);
    const at::Tensor losses = at::empty({std::min(rows, chunk)}, numbers);
    at::Tensor sum = at::zeros({}, numbers);
    check_labels(labels, head.size(0));
    for (int64_t begin = 0; begin < rows; begin += chunk) {
      const int64_t n = std::min(chunk, rows - begin);
      const at::Tensor part = x_NC.narrow(0, begin, n);
      const at::Tensor logits = matrix_product(part, head.t());
      compute_losses(logits, labels.narrow(0, begin, n), scale, loss, with_gradient, losses.narrow(0, 0, n));
      sum = sum + sum_losses(losses.narrow(0, 0, n));
      if (!with_gradient) continue;
      write_product(dx.narrow(0, begin, n), logits, head);
      add_weight_gradient(w, logits, part);
    }
    if (with_gradient) {
      w.written();
      context->save_for_backward({dx.view(x.sizes())});
    }
    return sum * scale;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    // On other devices, reading the number would wait for them.
    ORTHANT_CHECK(!gradients[0].is_cpu() || gradients[0].item<double>() == 1.0);
    const at::Tensor dx = context->get_saved_variables()[0];
    return {dx, at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor apply_softcap(const at::Tensor& y, double cap) {
  const at::Tensor z = y.to(wide(y.scalar_type()));
  return cap > 0 ? z.div(cap).tanh().mul(cap) : z;
}

at::Tensor sum_losses(const at::Tensor& losses_N) {
  if (!losses_N.is_cpu()) return losses_N.sum();
  double sum = 0;
  for (const double one : std::span(in<double>(losses_N), static_cast<size_t>(losses_N.numel()))) sum += one;
  return at::scalar_tensor(sum, at::kDouble);
}

at::Tensor fused_cross_entropy(const at::Tensor& x_BTC, const Weight& head, const Microbatch& batch,
                               const OutputLoss& loss) {
  const bool with_gradient = at::GradMode::is_enabled() && x_BTC.requires_grad();
  return CrossEntropy::apply(x_BTC, head.value, reinterpret_cast<int64_t>(&head), batch.labels_BT, batch.loss_scale,
                             loss, with_gradient);
}

}  // namespace orthant
