// The papers' form of the three products (van de Geijn and Watts 1997, "SUMMA"; Optimus, algorithms 1 to 3). Panels of
// the sharded extent are broadcast to the ranks that multiply them, or their products are summed on the rank that keeps
// the result. Any extents and meshes are legal: a panel ends wherever a column's or a row's shard ends. A q x q mesh
// has q panels.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "comm/comm.h"

namespace orthant {

/// The products of the same names in products.h, with two collectives a panel.
at::Tensor summa_ab(Comm& comm, const at::Tensor& a_TK, const at::Tensor& b_KN, int64_t K);
at::Tensor summa_abt(Comm& comm, const at::Tensor& a_TN, const at::Tensor& b_KN, int64_t K);
at::Tensor summa_atb(Comm& comm, const at::Tensor& a_TK, const at::Tensor& b_TN, int64_t K);

}  // namespace orthant
