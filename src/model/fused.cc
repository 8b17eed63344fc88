// The primitives built on one-pass CPU kernels, and the embedding among them.
#include "model/attention_core.h"
#include "model/dropout.h"
#include "model/element.h"
#include "model/linear.h"
#include "model/local_operations.h"
#include "model/loss.h"
#include "model/norms.h"
#include "model/primitives.h"
#include "model/token_checks.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

namespace orthant {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

int64_t handle(const Weight& weight) { return reinterpret_cast<int64_t>(&weight); }
const Weight& weight_of(AutogradContext* context) {
  return *reinterpret_cast<const Weight*>(context->saved_data["weight"].toInt());
}

// Adds each row of dx to the row of the weight's gradient that the index names.
void add_rows(const Weight& weight, const at::Tensor& index, const at::Tensor& dx) {
  const at::Tensor rows = index.flatten();
  if (weight.take_overwrite_flag()) weight.gradient.zero_();
  const at::Tensor dx_rows = dx.reshape({rows.numel(), -1}).to(weight.gradient.scalar_type());
  add_to_rows(weight.gradient, rows, dx_rows);
  weight.written();
}

struct Embedding : torch::autograd::Function<Embedding> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& tokens, const at::Tensor& table,
                            int64_t weight) {
    context->save_for_backward({tokens});
    context->saved_data["weight"] = weight;
    check_tokens(tokens, table.size(0));
    return at::embedding(table, tokens);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    add_rows(weight_of(context), context->get_saved_variables()[0], gradients[0]);
    return {at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

struct AddPositions : torch::autograd::Function<AddPositions> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& positions,
                            const at::Tensor& table, int64_t weight) {
    context->save_for_backward({positions});
    context->saved_data["weight"] = weight;
    return at::embedding(table, positions).add_(x);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    add_rows(weight_of(context), context->get_saved_variables()[0], gradients[0]);
    return {gradients[0], at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

Primitives fused_primitives() { return fused_primitives(std::make_shared<AttentionCore>(local_attention())); }

Primitives fused_primitives(std::shared_ptr<const AttentionCore> core) {
  return {
      .embedding = [](const at::Tensor& tokens,
                      const Weight& table) { return Embedding::apply(tokens, table.value, handle(table)); },
      .add_positions = [](const at::Tensor& x, const Microbatch& batch, const Weight& table) {
        return AddPositions::apply(x, batch.positions_BT, table.value, handle(table));
      },
      .add_norm = fused_add_norm,
      .linear = linear,
      .linear_backward = linear_backward,
      .attention = [core](const at::Tensor& qkv, const Microbatch& batch,
                          const AttentionShape& shape) { return attention(*core, qkv, batch, shape); },
      .local = fused_local,
      .dropout = dropout_with_key,
      .cross_entropy = fused_cross_entropy,
      .logits = [](const at::Tensor& x, const Weight& head,
                   const Microbatch& batch) { return linear(labeled_rows(x, batch.labels_BT), head); },
  };
}

}  // namespace orthant
