#include "parallel/tensor/muon.h"

#include <ATen/ATen.h>

#include <utility>

#include "base/errors.h"
#include "parallel/tensor/muon_plan.h"

namespace orthant {
ShardedOrthogonalizer::ShardedOrthogonalizer(Comm& comm, const Axes& axes, const std::vector<ParameterInfo>& parameters,
                                             const std::vector<Layout>& layouts)
    : comm_(comm), axes_(axes), parameters_(parameters), layouts_(layouts) {}

std::vector<MatrixRound> ShardedOrthogonalizer::rounds(const std::vector<size_t>& matrices) const {
  return matrix_rounds(parameters_, matrices, comm_.group_size(axes_));
}

std::vector<at::Tensor> ShardedOrthogonalizer::orthogonalized(const MatrixRound& round,
                                                              std::vector<at::Tensor> shards) const {
  const at::NoGradGuard no_grad;
  const RoundElements elements = round_elements(comm_.mesh(), axes_, round, parameters_, layouts_, comm_.rank());
  const at::TensorOptions options = shards.front().options();
  std::vector<at::Tensor> flat;
  for (const at::Tensor& shard : shards) {
    ORTHANT_CHECK(shard.numel() > 0, comm_.rank());  // otherwise this rank's optimizer would leave the matrix out
    flat.push_back(shard.flatten());
  }
  shards.clear();
  at::Tensor sent = at::cat(flat);
  flat.clear();
  at::Tensor pieces = at::empty({elements.matrix_elements()}, options);
  comm_.all_to_all(pieces, sent, axes_, elements.received_from, elements.sent_to).wait();
  sent.reset();

  if (pieces.numel() > 0) {
    const size_t own = round[static_cast<size_t>(comm_.position(axes_))];
    const std::vector<int> group = comm_.mesh().group(comm_.rank(), axes_);
    // Calls `copy` with each rank's piece, and the part of the matrix that it stands for.
    const auto for_each_piece = [&](const at::Tensor& matrix, const auto& copy) {
      int64_t offset = 0;
      for (const int rank : group) {
        const auto ranges = local_ranges(comm_.mesh(), layouts_[own], parameters_[own].shape, rank);
        const at::Tensor part = matrix.narrow(0, ranges[0].begin, ranges[0].size())
                                    .narrow(1, ranges[1].begin, ranges[1].size());
        const at::Tensor piece = pieces.narrow(0, offset, part.numel()).view(part.sizes());
        copy(part, piece);
        offset += part.numel();
      }
    };
    at::Tensor matrix = at::empty(parameters_[own].shape, options);
    for_each_piece(matrix, [](const at::Tensor& part, const at::Tensor& piece) { part.copy_(piece); });
    pieces.reset();
    const at::Tensor result = orthant::orthogonalized(std::exchange(matrix, at::Tensor()));
    pieces = at::empty({elements.matrix_elements()}, options);
    for_each_piece(result, [](const at::Tensor& part, const at::Tensor& piece) { piece.copy_(part); });
  }

  const at::Tensor received = at::empty({elements.shard_elements()}, options);
  comm_.all_to_all(received, pieces, axes_, elements.sent_to, elements.received_from).wait();
  std::vector<at::Tensor> results;
  int64_t offset = 0;
  for (const size_t matrix : round) {
    const auto shape = local_shape(comm_.mesh(), layouts_[matrix], parameters_[matrix].shape, comm_.rank());
    results.push_back(received.narrow(0, offset, volume(shape)).view(shape));
    offset += volume(shape);
  }
  return results;
}

}  // namespace orthant
