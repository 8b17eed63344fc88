#include "parallel/tensor/token_rows.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "model/linear.h"

namespace orthant {

TokenSelection selection_for(const at::Tensor& ids) {
  return ids.is_cpu() ? TokenSelection::listed : TokenSelection::all;
}

TokenRows::TokenRows(const at::Tensor& ids_N, const Range& rows, TokenSelection selection) : tokens_(ids_N.numel()) {
  if (selection == TokenSelection::all) {
    outside_ = ids_N.lt(rows.begin).logical_or_(ids_N.ge(rows.end));
    const at::Tensor spread = at::arange(tokens_, ids_N.options());
    weight_rows_ = at::where(outside_, spread, ids_N.sub(rows.begin)).remainder_(std::max<int64_t>(1, rows.size()));
    return;
  }
  selected_ = ids_N.ge(rows.begin).logical_and_(ids_N.lt(rows.end)).nonzero().squeeze(1);
  weight_rows_ = ids_N.index_select(0, selected_).sub_(rows.begin);
}

at::Tensor TokenRows::look_up(const at::Tensor& weight_RC) const {
  if (selected_.defined()) return weight_RC.index_select(0, weight_rows_);
  if (weight_RC.size(0) == 0) return at::zeros({tokens_, weight_RC.size(1)}, weight_RC.options());
  return weight_RC.index_select(0, weight_rows_).masked_fill_(outside_.unsqueeze(1), 0.0);
}

at::Tensor TokenRows::select(const at::Tensor& of_tokens) const {
  if (selected_.defined()) return of_tokens.index_select(0, selected_);
  return of_tokens.masked_fill(of_tokens.dim() > 1 ? outside_.unsqueeze(1) : outside_, 0.0);
}

at::Tensor TokenRows::spread(const at::Tensor& selected) const {
  if (!selected_.defined()) return selected;
  return at::zeros({tokens_, selected.size(1)}, selected.options()).index_copy_(0, selected_, selected);
}

void TokenRows::add_to_tokens(const at::Tensor& sum_NC, const at::Tensor& selected) const {
  selected_.defined() ? sum_NC.index_add_(0, selected_, selected) : sum_NC.add_(selected);
}

void TokenRows::add_to_weight(const at::Tensor& sum_RC, const at::Tensor& selected) const {
  if (sum_RC.size(0) > 0) add_to_rows(sum_RC, weight_rows_, selected);
}

}  // namespace orthant
