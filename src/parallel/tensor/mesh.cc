#include "parallel/tensor/mesh.h"

#include <ATen/ATen.h>

namespace orthant {
namespace {

Redistribution start(Comm& comm, const at::Tensor& part, const AxisRedistribution& move) {
  return {comm, part, move.from, move.to, move.shape};
}

}  // namespace

int TensorMesh::column() const { return comm_.position({kColumn}); }

Redistribution TensorMesh::gather(const at::Tensor& part, int64_t width) const {
  return start(comm_, part, gather_stream(plan_, {part.size(0), all_tokens(part.size(1)), width}));
}

Redistribution TensorMesh::sum(const at::Tensor& summand) const {
  return start(comm_, summand, sum_stream(plan_, summand.sizes().vec()));
}

at::Tensor TensorMesh::gather_columns(const at::Tensor& own) const {
  std::vector<int64_t> shape = own.sizes().vec();
  shape.insert(shape.begin(), plan_.columns);
  const at::Tensor all = at::empty(shape, own.options());
  comm_.all_gather(all, own.contiguous(), kOverColumns).wait();
  return all;
}

Redistribution TensorMesh::gather_rows(const at::Tensor& part, int dim, int64_t extent) const {
  auto shape = part.sizes().vec();
  shape[static_cast<size_t>(dim)] = extent;
  return start(comm_, part, orthant::gather_rows(std::move(shape), dim));
}

Redistribution TensorMesh::sum_rows(const at::Tensor& summand, int dim) const {
  return start(comm_, summand, orthant::sum_rows(summand.sizes().vec(), dim));
}

at::Tensor TensorMesh::gather_token_ids(const at::Tensor& token_ids) const {
  return start(comm_, token_ids, orthant::gather_token_ids(plan_, token_ids.numel())).wait();
}

at::Tensor TensorMesh::results_to_tokens(const at::Tensor& results, int64_t hidden) const {
  return start(comm_, results, orthant::results_to_tokens(plan_, results.size(0) / plan_.rows, hidden)).wait();
}

at::Tensor TensorMesh::gradients_to_rows(const at::Tensor& gradients) const {
  return start(comm_, gradients, orthant::gradients_to_rows(plan_, gradients.size(0), gradients.size(1))).wait();
}

int64_t TensorMesh::all_tokens(int64_t of_part) const {
  return of_part * (plan_.stream == StreamSharding::tokens ? plan_.columns : 1);
}

Range TensorMesh::tokens(int64_t all) const {
  return plan_.stream == StreamSharding::tokens ? shard(all, plan_.columns, column()) : Range{0, all};
}

Range TensorMesh::channels(int64_t width) const {
  return plan_.stream == StreamSharding::width ? shard(width, plan_.columns, column()) : Range{0, width};
}

}  // namespace orthant
