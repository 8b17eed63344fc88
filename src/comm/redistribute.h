// redistribute() on tensors: carries out the Collectives that mesh plans between two layouts, with the gradient that
// follows from the dual layouts. The one operator by which sharded code communicates.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "comm/comm.h"
#include "mesh/redistribute.h"

namespace orthant {

/// This rank's part of the tensor in layout `to`, given its part in layout `from`. Communication and bytes are those
/// of mesh's redistribute(). Differentiable: the backward is redistribute(dual(to) -> dual(from)). The Comm must live
/// until the backward has run. LogicError when `local` has not the shape that `from` gives this rank.
at::Tensor redistribute(Comm& comm, const at::Tensor& local, const Layout& from, const Layout& to,
                        const std::vector<int64_t>& global_shape);

/// The same under way, without gradient: its first step, and for most layouts there is one only, has begun.
class [[nodiscard]] Redistribution {
 public:
  Redistribution(Comm& comm, const at::Tensor& local, const Layout& from, const Layout& to,
                 const std::vector<int64_t>& global_shape);
  Redistribution(Redistribution&&) noexcept;
  Redistribution& operator=(Redistribution&&) noexcept;
  ~Redistribution();
  /// This rank's part in layout `to`; once.
  at::Tensor wait();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// One step of it, without gradient: the rank's part after the Collective, given the part in layout `before`.
at::Tensor carry_out(Comm& comm, const Collective& collective, const at::Tensor& local, const Layout& before,
                     const std::vector<int64_t>& global_shape);

}  // namespace orthant
