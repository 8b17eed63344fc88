// Matrices of small integers, sharded over a tensor mesh. Their products are exact in every dtype and for every order
// of sums, so tests can require equal bits.
#pragma once

#include <ATen/ATen.h>

#include <array>
#include <mutex>

#include "comm/comm.h"
#include "comm/thread_ranks.h"
#include "parallel/tensor/plan.h"

namespace orthant {

inline Mesh tensor_mesh(int rows, int columns, int depth) {
  return Mesh({{kColumn, columns}, {kRow, rows}, {kDepth, depth}});
}
inline const Axes kColumns{kColumn}, kRows{kRow}, kDepths{kDepth},
    kTokens{kRow, kDepth};

/// A matrix with the elements (a row + b column) mod modulus - shift.
inline at::Tensor integers(int64_t rows, int64_t columns, int64_t a, int64_t b, int64_t modulus, int64_t shift) {
  const at::Tensor r = at::arange(rows).view({-1, 1}), c = at::arange(columns).view({1, -1});
  return ((a * r + b * c).remainder(modulus) - shift).to(at::kDouble);
}

struct Matrices {
  at::Tensor x_TK, w_KN, dy_TN;
};
inline Matrices exact_matrices(int64_t T, int64_t K, int64_t N, at::ScalarType type = at::kDouble) {
  return {integers(T, K, 3, 5, 7, 3).to(type), integers(K, N, 2, 3, 5, 2).to(type),
          integers(T, N, 1, 2, 3, 1).to(type)};
}

/// This rank's shard of a matrix whose rows are sharded over the axes `rows`, and whose columns over the axes
/// `columns`.
inline at::Tensor part_of(const Comm& comm, const at::Tensor& whole, const Axes& rows, const Axes& columns) {
  const Range r = shard(whole.size(0), comm.group_size(rows), comm.position(rows));
  const Range c = shard(whole.size(1), comm.group_size(columns), comm.position(columns));
  return whole.narrow(0, r.begin, r.size()).narrow(1, c.begin, c.size()).contiguous();
}
inline at::Tensor tokens_part(const Comm& comm, const at::Tensor& whole) {
  return part_of(comm, whole, kTokens, kColumns);
}
inline at::Tensor weight_part(const Comm& comm, const at::Tensor& whole) {
  return part_of(comm, whole, kRows, kColumns);
}

/// Calls work() on thread ranks, one for each rank of the mesh.
inline void on_mesh(const Mesh& mesh, const std::function<void(Comm&)>& work) {
  run_ranks(mesh.size(), [&](Rendezvous rendezvous, int rank) {
    Comm comm(mesh, rank, rendezvous);
    work(comm);
  });
}

}  // namespace orthant
