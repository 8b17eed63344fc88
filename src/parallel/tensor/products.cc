#include "parallel/tensor/products.h"

#include <ATen/ATen.h>

#include "base/errors.h"
#include "comm/redistribute.h"
#include "model/element.h"
#include "model/linear.h"
#include "parallel/tensor/summa.h"

namespace orthant {
namespace {

const std::string kColumnAxis(kColumn), kRowAxis(kRow);

Layout cut(int dim, const std::string& axis) {
  Layout layout = whole(2);
  layout.split[static_cast<size_t>(dim)] = {axis};
  return layout;
}
Layout partial(const std::string& axis) { return {.split = whole(2).split, .partial = {axis}, .replicated = {}}; }

// The whole of what is cut over one axis, along the dim, and the way back: the sum over it of what every rank has.
at::Tensor gathered(Comm& comm, const at::Tensor& part, int dim, const std::string& axis, int64_t extent) {
  auto shape = part.sizes().vec();
  shape[static_cast<size_t>(dim)] = extent;
  return redistribute(comm, part, cut(dim, axis), whole(2), shape);
}
at::Tensor scattered(Comm& comm, const at::Tensor& sum, int dim, const std::string& axis) {
  return redistribute(comm, sum, partial(axis), cut(dim, axis), sum.sizes().vec());
}

}  // namespace

at::Tensor TensorProducts::ab(const at::Tensor& a, const at::Tensor& b, int64_t K) const {
  ORTHANT_CHECK(a.dim() == 2 && b.dim() == 2, a.dim(), b.dim());
  const at::NoGradGuard no_grad;
  if (form_ == ProductForm::summa) return summa_ab(comm_, a, b, K);
  return gathered(comm_, a, 1, kColumnAxis, K).mm(gathered(comm_, b, 0, kRowAxis, K));
}

at::Tensor TensorProducts::abt(const at::Tensor& a, const at::Tensor& b, int64_t K) const {
  ORTHANT_CHECK(a.dim() == 2 && b.dim() == 2 && a.size(1) == b.size(1), a.size(1), b.size(1));
  const at::NoGradGuard no_grad;
  if (form_ == ProductForm::summa) return summa_abt(comm_, a, b, K);
  return scattered(comm_, a.mm(gathered(comm_, b, 0, kRowAxis, K).t()), 1, kColumnAxis);
}

at::Tensor TensorProducts::atb(const at::Tensor& a, const at::Tensor& b, int64_t K) const {
  ORTHANT_CHECK(a.dim() == 2 && b.dim() == 2 && a.size(0) == b.size(0), a.size(0), b.size(0));
  const at::NoGradGuard no_grad;
  if (form_ == ProductForm::summa) return summa_atb(comm_, a, b, K);
  at::Tensor product = at::empty({K, b.size(1)}, b.options().dtype(wide(b.scalar_type())));
  add_product(product, gathered(comm_, a, 1, kColumnAxis, K).t(), b, false);
  return scattered(comm_, product, 0, kRowAxis);
}

}  // namespace orthant
