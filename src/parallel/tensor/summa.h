// The papers' form of the three products (van de Geijn and Watts 1997, "SUMMA"; Optimus, algorithms 1 to 3): panels of
// the cut extent are broadcast to where they are multiplied, or their products summed up where they belong. Extents and
// meshes are arbitrary: a panel ends wherever a column's or a row's share does, q of them on a square mesh.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "comm/comm.h"

namespace orthant {

/// As the products of the same names in products.h; 2 calls a panel.
at::Tensor summa_ab(Comm& comm, const at::Tensor& a_TK, const at::Tensor& b_KN, int64_t K);
at::Tensor summa_abt(Comm& comm, const at::Tensor& a_TN, const at::Tensor& b_KN, int64_t K);
at::Tensor summa_atb(Comm& comm, const at::Tensor& a_TK, const at::Tensor& b_TN, int64_t K);

}  // namespace orthant
