#include "parallel/tensor/embedding_shard.h"

#include <ATen/ATen.h>

#include <utility>

#include "model/linear.h"

namespace orthant {

EmbeddingShard::EmbeddingShard(const SliceMesh& mesh, const Weight& table, const at::Tensor& tokens, const Range& rows,
                               bool trains)
    : move_(trains ? mesh.embedding_move(table, tokens.numel()) : EmbeddingMove::table), sequences_(tokens.size(0)) {
  const at::Tensor own = tokens.flatten();
  const at::Tensor all = move_ == EmbeddingMove::results ? mesh.gather_token_ids(own) : own;
  tokens_ = all.numel();
  which_ = all.ge(rows.begin).logical_and_(all.lt(rows.end)).nonzero().squeeze(1);
  row_ = all.index_select(0, which_).sub_(rows.begin);
}

at::Tensor EmbeddingShard::look_up(const SliceMesh& mesh, const Weight& weight) const {
  at::Tensor table = move_ == EmbeddingMove::results ? weight.value.detach() : mesh.gather_weight(weight);
  at::Tensor found = at::zeros({tokens_, table.size(1)}, table.options());
  found.index_copy_(0, which_, table.index_select(0, row_));
  table.reset();
  if (move_ == EmbeddingMove::results) found = mesh.results_to_tokens(found);
  return mesh.sum(found, sequences_);
}

void EmbeddingShard::accumulate(const SliceMesh& mesh, const Weight& table, const at::Tensor& gradient) const {
  const bool has_tokens_of_all_rows = move_ == EmbeddingMove::results;
  at::Tensor all = mesh.gather(gradient);
  if (has_tokens_of_all_rows) all = mesh.gradients_to_rows(all);
  if (has_tokens_of_all_rows && table.take_overwrite_flag()) table.gradient.zero_();
  const at::Tensor sum = has_tokens_of_all_rows ? table.gradient : mesh.begin_gradient(table, tokens_ > 0);
  add_to_rows(sum, row_, all.index_select(0, which_).to(sum.scalar_type()));
  if (has_tokens_of_all_rows) return table.written();
  mesh.finish_gradient(table, sum);
}

}  // namespace orthant
