#include "parallel/tensor/mesh.h"

namespace orthant {
namespace {

const std::string kColumnAxis(kColumn), kRowAxis(kRow);

constexpr int kTokenDim = 1, kWidthDim = 2;

Layout cut(int dims, int dim, const std::string& axis) {
  Layout layout = whole(dims);
  if (dim >= 0) layout.split[static_cast<size_t>(dim)] = {axis};
  return layout;
}
Layout copies(int dims, const std::string& axis) {
  Layout layout = whole(dims);
  layout.replicated = {axis};
  return layout;
}
Layout summands(int dims, const std::string& axis) {
  Layout layout = whole(dims);
  layout.partial = {axis};
  return layout;
}

Layout stream(StreamCut how) {
  return cut(3, how == StreamCut::width ? kWidthDim : how == StreamCut::tokens ? kTokenDim : -1, kColumnAxis);
}

}  // namespace

int TensorMesh::column() const { return comm_.position({kColumnAxis}); }

Redistribution TensorMesh::gather(const at::Tensor& part, int64_t width) const {
  auto shape = part.sizes().vec();
  if (plan_.stream == StreamCut::tokens) shape[kTokenDim] *= plan_.columns;
  shape[kWidthDim] = width;
  return {comm_, part, stream(plan_.stream), copies(3, kColumnAxis), shape};
}

Redistribution TensorMesh::settle(const at::Tensor& summand) const {
  return {comm_, summand, summands(3, kColumnAxis), stream(plan_.stream), summand.sizes().vec()};
}

Redistribution TensorMesh::gather_rows(const at::Tensor& part, int dim, int64_t extent) const {
  auto shape = part.sizes().vec();
  shape[static_cast<size_t>(dim)] = extent;
  return {comm_, part, cut(2, dim, kRowAxis), copies(2, kRowAxis), shape};
}

Redistribution TensorMesh::sum_rows(const at::Tensor& summand, int dim) const {
  return {comm_, summand, summands(2, kRowAxis), cut(2, dim, kRowAxis), summand.sizes().vec()};
}

Range TensorMesh::tokens(int64_t all) const {
  return plan_.stream == StreamCut::tokens ? shard(all, plan_.columns, column()) : Range{0, all};
}

Range TensorMesh::channels(int64_t width) const {
  return plan_.stream == StreamCut::width ? shard(width, plan_.columns, column()) : Range{0, width};
}

}  // namespace orthant
