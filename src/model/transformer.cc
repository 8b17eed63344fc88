#include "model/transformer.h"

#include "base/errors.h"
#include "model/element.h"
#include "model/loss.h"
#include "model/recompute.h"

#include <ATen/ATen.h>

#include <tuple>
#include <utility>

namespace orthant {

std::pair<at::Tensor, at::Tensor> rotary_tables(const Architecture& a, int64_t positions, at::ScalarType dtype) {
  const auto frequencies = inverse_frequencies(a);
  at::Tensor f = at::empty({static_cast<int64_t>(frequencies.size())}, at::kDouble);
  std::copy(frequencies.begin(), frequencies.end(), f.mutable_data_ptr<double>());
  const at::Tensor angles = at::outer(at::arange(positions, at::kDouble), f);
  const double factor = rotary_factor(a);
  return {(angles.cos() * factor).to(dtype), (angles.sin() * factor).to(dtype)};
}

Transformer::Transformer(const Architecture& architecture, const Weights& weights, Primitives primitives,
                         Options options)
    : architecture_(architecture), primitives_(std::move(primitives)), options_(options) {
  const auto& a = architecture_;
  attention_ = {.heads = a.num_attention_heads,
                .kv_heads = a.num_key_value_heads,
                .head_dim = a.head_dim,
                .max_positions = a.max_position_embeddings,
                .rule = {.causal = a.causal(), .sliding_window = a.sliding_window},
                .softcap = a.attn_logit_softcapping};
  if (a.rotary()) {
    std::tie(attention_.cos_PD, attention_.sin_PD) =
        rotary_tables(a, a.max_position_embeddings, wide(weights.working_dtype()));
    attention_.cos_PD = attention_.cos_PD.to(weights.device());
    attention_.sin_PD = attention_.sin_PD.to(weights.device());
  } else {
    positions_ = &weights["model.embed_positions.weight"];
  }
  for (int64_t layer = 0; layer < a.num_hidden_layers; ++layer) {
    auto weight = [&](const std::string& name) {
      return &weights[fmt::format("model.layers.{}.{}", layer, name)];
    };
    AttentionShape attention = attention_;
    attention.layer = layer;
    if (a.linformer_length > 0) {
      attention.linformer_k = weight("self_attn.linformer_k");
      attention.linformer_v = weight("self_attn.linformer_v");
    }
    Block& block = blocks_.emplace_back();
    block.attention = attention;
    const std::vector<Operation> operations = block_operations(a);
    if (options.recompute.applies_to(layer)) block.recomputed = options.recompute.ranges(operations);
    auto site = 1 + 2 * static_cast<uint64_t>(layer);
    for (const Operation& operation : operations) {
      block.operations.push_back({operation, operation.weight.empty() ? nullptr : weight(operation.weight),
                                  operation.to_stream ? site++ : 0});
    }
  }
  embedding_ = &weights["model.embed_tokens.weight"];
  final_norm_ = &weights["model.norm.weight"];
  head_ = weights.contains("lm_head.weight") ? &weights["lm_head.weight"] : embedding_;
}

at::Tensor Transformer::drop(const at::Tensor& x_BTC, const Microbatch& batch, uint64_t site) const {
  const bool training = batch.step > 0;
  return primitives_.dropout(x_BTC, batch, {training ? architecture_.dropout : 0.0, options_.seed, site});
}

at::Tensor Transformer::embedded(const at::Tensor& rows_BTC, const Microbatch& batch) const {
  return drop(positions_ == nullptr ? rows_BTC : primitives_.add_positions(rows_BTC, batch, *positions_), batch, 0);
}

at::Tensor Transformer::embed(const Microbatch& batch) const {
  return embedded(primitives_.embedding(batch.tokens_BT, *embedding_), batch);
}

void Transformer::run_operation(const Block& block, size_t i, const Microbatch& batch, Values& v) const {
  const auto& [operation, weight, dropout_site] = block.operations[i];
  const double eps = architecture_.rms_norm_eps;
  switch (operation.kind) {
    case OperationKind::norm:
      std::tie(v.value, v.stream) = v.added.defined()
                                        ? primitives_.add_norm(operation.function, v.added, v.stream, *weight, eps)
                                        : primitives_.add_norm(operation.function, v.stream, {}, *weight, eps);
      v.added = at::Tensor();
      break;
    case OperationKind::linear:
      v.value = primitives_.linear(v.value, *weight);
      break;
    case OperationKind::attention:
      v.value = primitives_.attention(v.value, batch, block.attention);
      break;
    case OperationKind::local:
      v.value = primitives_.local(operation.function, v.value, weight, block.attention, eps);
      break;
  }
  add_to_stream(block.operations[i], batch, v);
}

void Transformer::add_to_stream(const BoundOperation& bound, const Microbatch& batch, Values& v) const {
  if (bound.operation.to_stream) v.added = drop(std::exchange(v.value, {}), batch, bound.dropout_site);
}

void Transformer::run_recomputed(const Block& block, const RecomputedRange& range, const Microbatch& batch,
                                 Values& v) const {
  const BoundOperation& last = block.operations[range.last_product()];
  const bool reads_stream = block.operations[range.begin].operation.kind == OperationKind::norm;
  const RangeFunctions functions{
      .before_product =
          [this, &block, range, batch, reads_stream](const at::Tensor& input) {
            Values values;
            (reads_stream ? values.stream : values.value) = input;
            for (size_t i = range.begin; i < range.last_product(); ++i) run_operation(block, i, batch, values);
            return RangeFunctions::Values{.x = values.value, .stream = values.stream};
          },
      .product = [this, weight = last.weight](const at::Tensor& x) { return primitives_.linear(x, *weight); },
      .product_backward =
          [this, weight = last.weight](const at::Tensor& x, const at::Tensor& dy) {
            return primitives_.linear_backward(x, *weight, dy);
          }};
  if (reads_stream) {
    if (v.added.defined()) v.stream = v.stream + std::exchange(v.added, {});
    std::tie(v.value, v.stream) = recompute(functions, v.stream);
  } else {
    v.value = recompute(functions, v.value).first;
  }
  add_to_stream(last, batch, v);
}

at::Tensor Transformer::block(int layer, const at::Tensor& x_BTC, const Microbatch& batch) const {
  const Block& block = blocks_[static_cast<size_t>(layer)];
  Values values{.stream = x_BTC, .added = {}, .value = {}};
  auto range = block.recomputed.begin();
  for (size_t i = 0; i < block.operations.size();) {
    if (at::GradMode::is_enabled() && range != block.recomputed.end() && range->begin == i) {
      run_recomputed(block, *range, batch, values);
      i = range++->end;
    } else {
      run_operation(block, i++, batch, values);
    }
  }
  return values.stream + values.added;
}

at::Tensor Transformer::final_norm(const at::Tensor& x_BTC) const {
  const std::string function = stream_norm(architecture_, "model.norm").function;
  return primitives_.add_norm(function, x_BTC, {}, *final_norm_, architecture_.rms_norm_eps).first;
}

OutputLoss Transformer::output_loss(const Microbatch& batch) const {
  const OutputLoss training{.softcap = architecture_.final_logit_softcapping,
                            .smoothing = options_.label_smoothing,
                            .z_weight = options_.z_loss};
  return batch.step > 0 ? training : training.plain();
}

at::Tensor Transformer::loss(const at::Tensor& x_BTC, const Microbatch& batch) const {
  return primitives_.cross_entropy(final_norm(x_BTC), *head_, batch, output_loss(batch));
}

at::Tensor Transformer::run_blocks(const Microbatch& batch) const {
  at::Tensor x = embed(batch);
  for (int layer = 0; layer < architecture_.num_hidden_layers; ++layer) x = block(layer, x, batch);
  return x;
}

at::Tensor Transformer::forward(const Microbatch& batch) const { return loss(run_blocks(batch), batch); }

at::Tensor Transformer::logits(const at::Tensor& x_BTC, const Microbatch& batch) const {
  return apply_softcap(primitives_.logits(final_norm(x_BTC), *head_, batch), architecture_.final_logit_softcapping);
}

at::Tensor Transformer::logits(const Microbatch& batch) const { return logits(run_blocks(batch), batch); }

int Transformer::uses(const Weight& weight) const { return &weight == embedding_ && embedding_ == head_ ? 2 : 1; }

}  // namespace orthant
