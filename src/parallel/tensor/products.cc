#include "parallel/tensor/products.h"

#include <ATen/ATen.h>

#include "base/errors.h"
#include "model/element.h"
#include "model/linear.h"
#include "parallel/tensor/stationary.h"
#include "parallel/tensor/summa.h"

namespace orthant {
namespace {

TensorPlan plan_of(const Comm& comm, int64_t panel_bytes) {
  const auto size = [&](std::string_view axis) { return comm.group_size({std::string(axis)}); };
  return {.rows = size(kRow), .columns = size(kColumn), .depth = size(kDepth), .panel_bytes = panel_bytes};
}

}  // namespace

Layout token_matrix() {
  return {.split = {{std::string(kDepth), std::string(kRow)}, {std::string(kColumn)}}, .partial = {}, .replicated = {}};
}
Layout weight_matrix() {
  return {.split = {{std::string(kRow)}, {std::string(kColumn)}}, .partial = {}, .replicated = {}};
}

at::Tensor TensorProducts::ab(const at::Tensor& a, const at::Tensor& b, int64_t K) const {
  ORTHANT_CHECK(a.dim() == 2 && b.dim() == 2, a.dim(), b.dim());
  const at::NoGradGuard no_grad;
  if (form_ == ProductForm::summa) return summa_ab(comm_, a, b, K);
  const TensorMesh mesh(comm_, plan_of(comm_, panel_bytes_));
  Arriving whole_b(mesh.gather_rows(b, 0, K));
  return gather_and_multiply(mesh, a.unsqueeze(0), K, [&] { return whole_b.get(); }).squeeze(0);
}

at::Tensor TensorProducts::abt(const at::Tensor& a, const at::Tensor& b, int64_t K) const {
  ORTHANT_CHECK(a.dim() == 2 && b.dim() == 2 && a.size(1) == b.size(1), a.size(1), b.size(1));
  const at::NoGradGuard no_grad;
  if (form_ == ProductForm::summa) return summa_abt(comm_, a, b, K);
  const TensorMesh mesh(comm_, plan_of(comm_, panel_bytes_));
  Arriving whole_b(mesh.gather_rows(b, 0, K));
  return multiply_and_settle(mesh, a.unsqueeze(0), [&] { return whole_b.get().t(); }).squeeze(0);
}

at::Tensor TensorProducts::atb(const at::Tensor& a, const at::Tensor& b, int64_t K) const {
  ORTHANT_CHECK(a.dim() == 2 && b.dim() == 2 && a.size(0) == b.size(0), a.size(0), b.size(0));
  const at::NoGradGuard no_grad;
  if (form_ == ProductForm::summa) return summa_atb(comm_, a, b, K);
  const TensorMesh mesh(comm_, plan_of(comm_, panel_bytes_));
  const TokenPanels panels(mesh, 1, b.size(0), K, false, a.element_size());
  const at::Tensor product = at::empty({K, b.size(1)}, b.options().dtype(wide(b.scalar_type())));
  for_panels(
      panels.all(), [&](const Range& panel) { return panels.gather(a.unsqueeze(0), panel); },
      [&](const Range& panel, auto arrive) {
        add_product(product, flat(arrive()).t(), panels.rows(b.unsqueeze(0), panel), panel.begin > 0);
      });
  return mesh.sum_rows(product, 0).wait();
}

}  // namespace orthant
