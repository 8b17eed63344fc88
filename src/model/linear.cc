#include "model/linear.h"

#include <ATen/ATen.h>
#include <ATen/cpu/Utils.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <string>

// The x86 wheel's statically linked MKL exports this function. It is weak because other platforms lack it.
extern "C" __attribute__((weak)) void cblas_gemm_bf16bf16f32(int layout, int trans_a, int trans_b, int m, int n, int k,
                                                             float alpha, const uint16_t* a, int lda, const uint16_t* b,
                                                             int ldb, float beta, float* c, int ldc);

namespace orthant {
namespace {

constexpr int kRowMajor = 101, kNoTrans = 111, kTrans = 112;  // CBLAS's values

// True if MKL's bfloat16 product is preferred to float32's with converted operands. Without the matrix instructions of
// AMX it has half the rate (benchmarks/zero/RESULTS.md), but in small products the memory of the copies counts more.
bool prefers_mkl(int64_t m, int64_t k, int64_t n) {
  constexpr int64_t kSmall = 1 << 26;
  static const bool exists = cblas_gemm_bf16bf16f32 != nullptr, is_fast = exists && at::cpu::init_amx();
  return is_fast || (exists && m * k * n < kSmall);
}

// sum (+)= a b with the operands converted to the dtype of sum. They are converted in parts of the contracted dim, of
// about 2 MiB, so that the copies need little memory. Without a part, the product is 0.
void add_product_of_parts(at::Tensor& sum, const at::Tensor& a, const at::Tensor& b, bool add) {
  constexpr int64_t kPartElements = 512 * 1024;
  if (!add && a.size(1) == 0) sum.zero_();
  const int64_t depth = a.size(1), part = std::max<int64_t>(64, kPartElements / (a.size(0) + b.size(1)));
  for (int64_t begin = 0; begin < depth; begin += part) {
    const int64_t length = std::min(part, depth - begin);
    at::addmm_out(sum, sum, a.narrow(1, begin, length).to(sum.scalar_type()),
                  b.narrow(0, begin, length).to(sum.scalar_type()), add || begin > 0 ? 1 : 0);
  }
}

// True if ATen multiplies these operands with loops of its own, at a small part of the rate of float32.
bool multiplies_slowly(const at::Tensor& a) {
  static const bool has_bfloat16 = [] {
    const auto capabilities = at::cpu::get_cpu_capabilities();
    const auto found = capabilities.find("avx512_bw");
    return found == capabilities.end() || found->second.toBool();  // other processors have other names
  }();
  return !has_bfloat16 && a.is_cpu() && a.scalar_type() == at::kBFloat16;
}

at::Tensor gradients(const at::Tensor& x, const Weight& weight, const at::Tensor& dy_BTO, bool wants_dx) {
  const at::Tensor dy = dy_BTO.contiguous().view({-1, dy_BTO.size(-1)});
  accumulate_bias(weight, dy);  // runs first: without the input's gradient, more memory is free
  at::Tensor dx;
  if (wants_dx) dx = matrix_product(dy, weight.value.detach()).view(x.sizes());
  // A deferred product keeps x alive. detach() releases the graph that computed x, which holds more memory.
  weight.add_weight_product([&weight, dy, x = x.detach()] {
    add_weight_gradient(weight, dy, x.view({-1, x.size(-1)}));
  });
  return dx;
}

struct Linear : torch::autograd::Function<Linear> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, const at::Tensor& value,
                            int64_t weight) {
    context->save_for_backward({x});
    context->saved_data["weight"] = weight;
    const Weight* bias = reinterpret_cast<const Weight*>(weight)->bias;
    auto shape = x.sizes().vec();
    shape.back() = value.size(0);
    return matrix_product(x.reshape({-1, x.size(-1)}), value.t(), bias == nullptr ? at::Tensor() : bias->value)
        .view(shape);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& output_gradients) {
    const auto* weight = reinterpret_cast<const Weight*>(context->saved_data["weight"].toInt());
    const at::Tensor x = context->get_saved_variables()[0];
    return {gradients(x, *weight, output_gradients[0], context->needs_input_grad(0)), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor linear(const at::Tensor& x, const Weight& weight) {
  return Linear::apply(x, weight.value, reinterpret_cast<int64_t>(&weight));
}

at::Tensor linear_backward(const at::Tensor& x, const Weight& weight, const at::Tensor& dy) {
  return gradients(x, weight, dy, true);
}

void write_product_by_blocks(const at::Tensor& y, const at::Tensor& a, const at::Tensor& b, const at::Tensor& bias) {
  constexpr int64_t kBlock = 512;
  for (int64_t row = 0; row < y.size(0); row += kBlock) {
    const int64_t rows = std::min(kBlock, y.size(0) - row);
    for (int64_t column = 0; column < y.size(1); column += kBlock) {
      const int64_t columns = std::min(kBlock, y.size(1) - column);
      const at::Tensor sum = at::empty({rows, columns}, y.options().dtype(at::kFloat));
      add_product(sum, a.narrow(0, row, rows), b.narrow(1, column, columns), false);
      if (bias.defined()) sum.add_(bias.narrow(0, column, columns));
      y.narrow(0, row, rows).narrow(1, column, columns).copy_(sum);
    }
  }
}

at::Tensor matrix_product(const at::Tensor& a, const at::Tensor& b, const at::Tensor& bias) {
  if (!multiplies_slowly(a)) return bias.defined() ? at::addmm(bias, a, b) : a.mm(b);
  const at::Tensor y = at::empty({a.size(0), b.size(1)}, a.options());
  write_product_by_blocks(y, a, b, bias);
  return y;
}

void write_product(at::Tensor y, const at::Tensor& a, const at::Tensor& b) {
  multiplies_slowly(a) ? write_product_by_blocks(y, a, b) : void(at::mm_out(y, a, b));
}

void add_to_rows(const at::Tensor& sum, const at::Tensor& rows, const at::Tensor& addends) {
  sum.is_cuda() ? sum.index_put_({rows}, addends, /*accumulate=*/true) : sum.index_add_(0, rows, addends);
}

void add_product(at::Tensor sum, const at::Tensor& a, const at::Tensor& b, bool add) {
  if (a.scalar_type() == sum.scalar_type()) {
    at::addmm_out(sum, sum, a, b, add ? 1 : 0);
    return;
  }
  // The matrix or its transpose, whichever has contiguous rows.
  const auto rows_of = [](const at::Tensor& t) { return t.stride(1) == 1 ? t : t.t(); };
  // True if the rows are contiguous and do not overlap; a block of a larger matrix is accepted.
  const auto in_rows = [&](const at::Tensor& t) {
    const at::Tensor rows = rows_of(t);
    return rows.stride(1) == 1 && (rows.size(0) == 1 || rows.stride(0) >= rows.size(1));
  };
  const bool bfloat16_on_cpu = a.is_cpu() && a.scalar_type() == at::kBFloat16;
  if (bfloat16_on_cpu && prefers_mkl(a.size(0), a.size(1), b.size(1)) && sum.stride(1) == 1 && in_rows(sum)) {
    const at::Tensor left = in_rows(a) ? a : a.contiguous(), right = in_rows(b) ? b : b.contiguous();
    const auto bits = [](const at::Tensor& t) { return static_cast<const uint16_t*>(t.const_data_ptr()); };
    const auto turned = [](const at::Tensor& t) { return t.stride(1) == 1 ? kNoTrans : kTrans; };
    const auto leading = [&](const at::Tensor& t) {
      return static_cast<int>(std::max(rows_of(t).stride(0), rows_of(t).size(1)));
    };
    cblas_gemm_bf16bf16f32(kRowMajor, turned(left), turned(right), static_cast<int>(left.size(0)),
                           static_cast<int>(right.size(1)), static_cast<int>(left.size(1)), 1.0f, bits(left),
                           leading(left), bits(right), leading(right), add ? 1.0f : 0.0f, sum.mutable_data_ptr<float>(),
                           leading(sum));
    return;
  }
  // The product is not rounded before the addition: CUDA adds it to the sum in the sum's dtype, CPUs convert the
  // operands.
  if (a.is_cuda()) {
    at::addmm_outf(sum, a, b, sum.scalar_type(), add ? 1 : 0, 1, sum);
  } else {
    add_product_of_parts(sum, a, b, add);
  }
}

void add_weight_gradient(const Weight& weight, const at::Tensor& dy, const at::Tensor& x) {
  const bool add = !weight.take_overwrite_flag();
  add_product(weight.gradient, dy.t(), x, add);
}

void accumulate_bias(const Weight& weight, const at::Tensor& dy) {
  if (weight.bias == nullptr) return;
  // The bias is a column of weights whose input is always one. This product reads dy once and sums with the precision
  // of a weight gradient.
  weight.bias->add_weight_product([bias = weight.bias, dy] {
    const bool add = !bias->take_overwrite_flag();
    add_product(bias->gradient.unsqueeze(1), dy.t(), at::ones({dy.size(0), 1}, dy.options()), add);
  });
}

}  // namespace orthant
