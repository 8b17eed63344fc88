#include "model/linear.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

// Exported by the wheel's statically linked MKL on x86; absent elsewhere, hence weak.
extern "C" __attribute__((weak)) void cblas_gemm_bf16bf16f32(int layout, int trans_a, int trans_b, int m, int n, int k,
                                                             float alpha, const uint16_t* a, int lda, const uint16_t* b,
                                                             int ldb, float beta, float* c, int ldc);

namespace orthant {
namespace {

constexpr int kRowMajor = 101, kNoTrans = 111, kTrans = 112;  // CBLAS's own values

struct Linear : torch::autograd::Function<Linear> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, const at::Tensor& value,
                            int64_t weight) {
    context->save_for_backward({x});
    context->saved_data["weight"] = weight;
    return at::matmul(x, value.t());
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const auto* weight = reinterpret_cast<const Weight*>(context->saved_data["weight"].toInt());
    const at::Tensor x = context->get_saved_variables()[0];
    const at::Tensor dy = gradients[0].contiguous().view({-1, gradients[0].size(-1)});
    at::Tensor dx;
    if (context->needs_input_grad(0)) dx = dy.mm(weight->value.detach()).view(x.sizes());
    add_weight_gradient(*weight, dy, x.view({-1, x.size(-1)}));
    weight->written();
    return {dx, at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor linear(const at::Tensor& x, const Weight& weight) {
  return Linear::apply(x, weight.value, reinterpret_cast<int64_t>(&weight));
}

void add_weight_gradient(const Weight& weight, const at::Tensor& dy, const at::Tensor& x) {
  const double beta = weight.take_fresh() ? 0 : 1;
  at::Tensor gradient = weight.gradient;
  if (dy.scalar_type() == gradient.scalar_type()) {
    at::addmm_out(gradient, gradient, dy.t(), x, beta);
    return;
  }
  if (dy.is_cpu() && dy.scalar_type() == at::kBFloat16 && cblas_gemm_bf16bf16f32 != nullptr) {
    const int n = static_cast<int>(dy.size(0)), rows = static_cast<int>(dy.size(1)),
              columns = static_cast<int>(x.size(1));
    auto bits = [](const at::Tensor& t) { return static_cast<const uint16_t*>(t.const_data_ptr()); };
    cblas_gemm_bf16bf16f32(kRowMajor, kTrans, kNoTrans, rows, columns, n, 1.0f, bits(dy), rows, bits(x), columns,
                           static_cast<float>(beta), gradient.mutable_data_ptr<float>(), columns);
    return;
  }
  const at::Tensor product = dy.t().mm(x);
  if (beta == 0) {
    gradient.copy_(product);
  } else {
    gradient.add_(product);
  }
}

}  // namespace orthant
