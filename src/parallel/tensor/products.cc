#include "parallel/tensor/products.h"

#include <ATen/ATen.h>

#include "base/errors.h"
#include "model/element.h"
#include "model/linear.h"
#include "parallel/tensor/stationary.h"
#include "parallel/tensor/summa.h"

namespace orthant {

Layout token_matrix() {
  return {.split = {{std::string(kDepth), std::string(kRow)}, {std::string(kColumn)}}, .partial = {}, .replicated = {}};
}
Layout weight_matrix() {
  return {.split = {{std::string(kRow)}, {std::string(kColumn)}}, .partial = {}, .replicated = {}};
}

TensorProducts::TensorProducts(Comm& comm, ProductForm form, int64_t panel_bytes)
    : mesh_(comm, {.rows = comm.group_size({std::string(kRow)}),
                   .columns = comm.group_size({std::string(kColumn)}),
                   .depth = comm.group_size({std::string(kDepth)}),
                   .form = form,
                   .panel_bytes = panel_bytes}) {}

at::Tensor TensorProducts::ab(const at::Tensor& a, const at::Tensor& b, int64_t K) const {
  ORTHANT_CHECK(a.dim() == 2 && b.dim() == 2, a.dim(), b.dim());
  const at::NoGradGuard no_grad;
  if (summa()) return summa_ab(mesh_.comm(), a, b, K);
  Arriving whole_b(mesh_.gather_rows(b, 0, K));
  return gather_and_multiply(mesh_, a.unsqueeze(0), K, [&] { return whole_b.get(); }).squeeze(0);
}

at::Tensor TensorProducts::abt(const at::Tensor& a, const at::Tensor& b, int64_t K) const {
  ORTHANT_CHECK(a.dim() == 2 && b.dim() == 2 && a.size(1) == b.size(1), a.size(1), b.size(1));
  const at::NoGradGuard no_grad;
  if (summa()) return summa_abt(mesh_.comm(), a, b, K);
  Arriving whole_b(mesh_.gather_rows(b, 0, K));
  return multiply_and_settle(mesh_, a.unsqueeze(0), [&] { return whole_b.get().t(); }).squeeze(0);
}

at::Tensor TensorProducts::atb(const at::Tensor& a, const at::Tensor& b, int64_t K) const {
  ORTHANT_CHECK(a.dim() == 2 && b.dim() == 2 && a.size(0) == b.size(0), a.size(0), b.size(0));
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
