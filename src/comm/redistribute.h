// redistribute() on tensors: carries out the Collectives that mesh plans between two layouts. Its gradient follows from
// the dual layouts. Sharded operators communicate through it.
//
// Each step runs over one mesh axis, so its cost depends on the size of that axis and not on the number of ranks
// (collectives.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "comm/comm.h"
#include "mesh/redistribute.h"

namespace orthant {

/// Returns this rank's shard of the tensor in layout `to`, given its shard in layout `from`. Steps and bytes are those
/// of mesh's redistribute(). Differentiable: the backward is redistribute(dual(to) -> dual(from)). The Comm must live
/// until the backward has run. Throws LogicError if `local` does not have the shape of this rank's shard in `from`.
at::Tensor redistribute(Comm& comm, const at::Tensor& local, const Layout& from, const Layout& to,
                        const std::vector<int64_t>& global_shape);

/// The same conversion as an operation in progress, without gradient. Its first step has started; most layouts need
/// only one.
class [[nodiscard]] Redistribution {
 public:
  Redistribution(Comm& comm, const at::Tensor& local, const Layout& from, const Layout& to,
                 const std::vector<int64_t>& global_shape);
  Redistribution(Redistribution&&) noexcept;
  Redistribution& operator=(Redistribution&&) noexcept;
  ~Redistribution();
  /// Completes the conversion and returns this rank's shard in layout `to`. Call it once.
  at::Tensor wait();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Carries out one step, without gradient: returns the shard after the Collective, given the shard in layout `before`.
at::Tensor carry_out(Comm& comm, const Collective& collective, const at::Tensor& local, const Layout& before,
                     const std::vector<int64_t>& global_shape);

}  // namespace orthant
