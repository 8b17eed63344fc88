#include "parallel/tensor/slice_mesh.h"

#include <ATen/ATen.h>

#include "base/errors.h"
#include "model/element.h"
#include "parallel/tensor/weight_sum.h"

namespace orthant {

SliceMesh::SliceMesh(Comm& comm, const TensorPlan& plan, int64_t width) : width_(width) {
  if (plan.rows * plan.columns > 1) mesh_.emplace(comm, plan);
}

std::vector<int64_t> SliceMesh::part_shape(int64_t sequences, int64_t tokens) const {
  if (alone()) return {sequences, tokens, width_};
  return {sequences, mesh_->tokens(tokens).size(), mesh_->channels(width_).size()};
}

at::Tensor SliceMesh::gather(const at::Tensor& part) const {
  const at::Tensor all = alone() ? part : mesh_->gather(part, width_).wait();
  return all.reshape({-1, all.size(-1)});
}

at::Tensor SliceMesh::sum(const at::Tensor& summand, int64_t sequences) const {
  if (alone()) return summand;
  const at::Tensor part = mesh_->sum(summand.view({sequences, -1, summand.size(1)})).wait();
  return part.view({-1, part.size(2)});
}

at::Tensor SliceMesh::part(const at::Tensor& numbers, int64_t sequences) const {
  if (alone()) return numbers;
  const at::Tensor all = numbers.view({sequences, -1});
  const Range tokens = mesh_->tokens(all.size(1));
  return all.slice(1, tokens.begin, tokens.end).reshape(-1);
}

at::Tensor SliceMesh::gather_columns(const at::Tensor& own) const {
  return alone() ? own.unsqueeze(0) : mesh_->gather_columns(own);
}

at::Tensor SliceMesh::gather_logits(Comm& comm, const at::Tensor& own, Axes axes, int64_t vocabulary) const {
  if (columns() > 1) axes.emplace_back(kColumn);
  Layout sharded = unsharded_layout(2);
  sharded.split[1] = std::move(axes);
  const at::Tensor all = redistribute(comm, own, sharded, unsharded_layout(2), {own.size(0), vocabulary});
  if (rows()) comm.broadcast(all, kOverRows).wait();
  return all;
}

EmbeddingMove SliceMesh::embedding_move(const Weight& table, int64_t tokens) const {
  if (!rows()) return EmbeddingMove::table;
  return orthant::embedding_move(mesh_->plan(), table.value.size(0), tokens, width_, table.value.element_size(),
                                 static_cast<int64_t>(c10::elementSize(wide(table.value.scalar_type()))));
}

at::Tensor SliceMesh::gather_weight(const Weight& weight) const {
  const at::Tensor value = weight.value.detach();
  return rows() ? mesh_->gather_rows(value, 1, width_).wait() : value;
}

at::Tensor SliceMesh::begin_gradient(const Weight& weight, bool adds) const {
  if (rows()) return at::zeros({weight.gradient.size(0), width_}, weight.gradient.options());
  if (adds && weight.take_overwrite_flag()) weight.gradient.zero_();
  return weight.gradient;
}

void SliceMesh::finish_gradient(const Weight& weight, const at::Tensor& sum) const {
  if (rows()) add_to_gradient(weight, mesh_->sum_rows(sum, 1).wait());
  weight.written();
}

}  // namespace orthant
