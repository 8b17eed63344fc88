// Orthogonalizes matrices of which the ranks of a tensor mesh hold shards. muon_plan.h describes the exchange.
#pragma once

#include <string>
#include <vector>

#include "comm/comm.h"
#include "mesh/layout.h"
#include "model/muon.h"

namespace orthant {

/// Orthogonalizes each matrix on one rank of the group over the axes that shard it.
class ShardedOrthogonalizer final : public Orthogonalizer {
 public:
  /// axes: those over which all matrices are sharded. parameters and layouts are those of the plan, by index. All must
  /// outlive this object.
  ShardedOrthogonalizer(Comm& comm, const Axes& axes, const std::vector<ParameterInfo>& parameters,
                        const std::vector<Layout>& layouts);

  bool exchanges() const override { return true; }
  std::vector<MatrixRound> rounds(const std::vector<size_t>& matrices) const override;
  /// All ranks of the group must call it together. Its bytes are those of round_elements().
  std::vector<at::Tensor> orthogonalized(const MatrixRound& round, std::vector<at::Tensor> shards) const override;

 private:
  Comm& comm_;
  const Axes& axes_;
  const std::vector<ParameterInfo>& parameters_;
  const std::vector<Layout>& layouts_;
};

}  // namespace orthant
