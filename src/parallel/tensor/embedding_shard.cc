#include "parallel/tensor/embedding_shard.h"

#include <ATen/ATen.h>

#include <utility>

namespace orthant {

EmbeddingShard::EmbeddingShard(const SliceMesh& mesh, const Weight& table, const at::Tensor& tokens, const Range& rows,
                               bool trains)
    : move_(trains ? mesh.embedding_move(table, tokens.numel()) : EmbeddingMove::table), sequences_(tokens.size(0)) {
  const at::Tensor own = tokens.flatten();
  const at::Tensor all = move_ == EmbeddingMove::results ? mesh.gather_token_ids(own) : own;
  has_tokens_ = all.numel() > 0;
  rows_.emplace(all, rows);
}

at::Tensor EmbeddingShard::look_up(const SliceMesh& mesh, const Weight& weight) const {
  at::Tensor table = move_ == EmbeddingMove::results ? weight.value.detach() : mesh.gather_weight(weight);
  at::Tensor found = rows_->spread(rows_->look_up(table));
  table.reset();
  if (move_ == EmbeddingMove::results) found = mesh.results_to_tokens(found);
  return mesh.sum(found, sequences_);
}

void EmbeddingShard::accumulate(const SliceMesh& mesh, const Weight& table, const at::Tensor& gradient) const {
  const bool has_tokens_of_all_rows = move_ == EmbeddingMove::results;
  at::Tensor all = mesh.gather(gradient);
  if (has_tokens_of_all_rows) all = mesh.gradients_to_rows(all);
  if (has_tokens_of_all_rows && table.take_overwrite_flag()) table.gradient.zero_();
  const at::Tensor sum = has_tokens_of_all_rows ? table.gradient : mesh.begin_gradient(table, has_tokens_);
  rows_->add_to_weight(sum, rows_->select(all).to(sum.scalar_type()));
  if (has_tokens_of_all_rows) return table.written();
  mesh.finish_gradient(table, sum);
}

}  // namespace orthant
