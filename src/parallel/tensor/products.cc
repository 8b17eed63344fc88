#include "parallel/tensor/products.h"

#include <ATen/ATen.h>

#include "base/errors.h"
#include "model/element.h"
#include "model/linear.h"
#include "parallel/tensor/stationary.h"
#include "parallel/tensor/summa.h"

namespace orthant {

namespace {

/// LogicError unless the extent along `dim` is that of this rank's shard of K. No collective would notice a wrong one.
void check_share(const Comm& comm, const at::Tensor& part, int dim, const Axes& axes, int64_t K) {
  const int64_t share = shard(K, comm.group_size(axes), comm.position(axes)).size();
  ORTHANT_CHECK(part.size(dim) == share, part.size(dim), share, K);
}

}  // namespace

Layout token_matrix() {
  return {.split = {{kDepth, kRow}, {kColumn}}, .partial = {}, .replicated = {}};
}
Layout weight_matrix() {
  return {.split = {{kRow}, {kColumn}}, .partial = {}, .replicated = {}};
}

TensorProducts::TensorProducts(Comm& comm, ProductForm form, int64_t panel_bytes)
    : mesh_(comm, {.rows = comm.group_size({kRow}),
                   .columns = comm.group_size({kColumn}),
                   .depth = comm.group_size({kDepth}),
                   .form = form,
                   .panel_bytes = panel_bytes}) {}

at::Tensor TensorProducts::ab(const at::Tensor& a, const at::Tensor& b, int64_t K) const {
  ORTHANT_CHECK(a.dim() == 2 && b.dim() == 2, a.dim(), b.dim());
  check_share(mesh_.comm(), a, 1, kOverColumns, K);
  check_share(mesh_.comm(), b, 0, kOverRows, K);
  const at::NoGradGuard no_grad;
  if (summa()) return summa_ab(mesh_.comm(), a, b, K);
  Arriving whole_b(mesh_.gather_rows(b, 0, K));
  return gather_and_multiply(mesh_, a.unsqueeze(0), K, [&] { return whole_b.get(); }).squeeze(0);
}

at::Tensor TensorProducts::abt(const at::Tensor& a, const at::Tensor& b, int64_t K) const {
  ORTHANT_CHECK(a.dim() == 2 && b.dim() == 2 && a.size(1) == b.size(1), a.size(1), b.size(1));
  check_share(mesh_.comm(), b, 0, kOverRows, K);
  const at::NoGradGuard no_grad;
  if (summa()) return summa_abt(mesh_.comm(), a, b, K);
  Arriving whole_b(mesh_.gather_rows(b, 0, K));
  return multiply_and_sum(mesh_, a.unsqueeze(0), [&] { return whole_b.get().t(); }).squeeze(0);
}

at::Tensor TensorProducts::atb(const at::Tensor& a, const at::Tensor& b, int64_t K) const {
  ORTHANT_CHECK(a.dim() == 2 && b.dim() == 2 && a.size(0) == b.size(0), a.size(0), b.size(0));
  check_share(mesh_.comm(), a, 1, kOverColumns, K);
  const at::NoGradGuard no_grad;
  if (summa()) return summa_atb(mesh_.comm(), a, b, K);
  const TokenPanels panels(mesh_, 1, b.size(0), K, false, a.element_size());
  const at::Tensor product = at::empty({K, b.size(1)}, b.options().dtype(wide(b.scalar_type())));
  for_panels(
      panels.all(), [&](const Range& panel) { return panels.gather(a.unsqueeze(0), panel); },
      [&](const Range& panel, auto arrive) {
        add_product(product, flat(arrive()).t(), panels.rows(b.unsqueeze(0), panel), panel.begin > 0);
      });
  return mesh_.sum_rows(product, 0).wait();
}

}  // namespace orthant
