#include "parallel/tensor/embedding_shard.h"

#include <ATen/ATen.h>

namespace orthant {

EmbeddingShard::EmbeddingShard(const at::Tensor& tokens, const Range& rows)
    : tokens_(tokens.numel()), sequences_(tokens.size(0)) {
  const at::Tensor all = tokens.flatten();
  which_ = all.ge(rows.begin).logical_and_(all.lt(rows.end)).nonzero().squeeze(1);
  row_ = all.index_select(0, which_).sub_(rows.begin);
}

at::Tensor EmbeddingShard::look_up(const SliceMesh& mesh, const Weight& weight) const {
  at::Tensor table = mesh.gather_weight(weight);
  const at::Tensor found = at::zeros({tokens_, table.size(1)}, table.options());
  found.index_copy_(0, which_, table.index_select(0, row_));
  table.reset();
  return mesh.sum(found, sequences_);
}

void EmbeddingShard::accumulate(const SliceMesh& mesh, const Weight& table, const at::Tensor& gradient) const {
  const at::Tensor all = mesh.gather(gradient), sum = mesh.begin_gradient(table, tokens_ > 0);
  sum.index_add_(0, row_, all.index_select(0, which_).to(sum.scalar_type()));
  mesh.finish_gradient(table, sum);
}

}  // namespace orthant
