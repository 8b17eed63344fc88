#include "model/transformer.h"

#include "base/errors.h"
#include "model/element.h"
#include "model/loss.h"

#include <ATen/ATen.h>

#include <tuple>

namespace orthant {

std::pair<at::Tensor, at::Tensor> rotary_tables(const Architecture& a, int64_t positions, at::ScalarType dtype) {
  const auto frequencies = inverse_frequencies(a);
  at::Tensor f = at::empty({static_cast<int64_t>(frequencies.size())}, at::kDouble);
  std::copy(frequencies.begin(), frequencies.end(), f.mutable_data_ptr<double>());
  const at::Tensor angles = at::outer(at::arange(positions, at::kDouble), f);
  return {angles.cos().to(dtype), angles.sin().to(dtype)};
}

Transformer::Transformer(const Architecture& architecture, const Weights& weights, Primitives primitives,
                         Options options)
    : architecture_(architecture), primitives_(std::move(primitives)), options_(options) {
  const auto& a = architecture_;
  auto [cos, sin] = rotary_tables(a, a.max_position_embeddings, wide(weights.values().scalar_type()));
  attention_ = {a.num_attention_heads,
                a.num_key_value_heads,
                a.head_dim,
                cos,
                sin,
                {.causal = a.causal(), .sliding_window = a.sliding_window}};
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
    for (const Operation& operation : block_operations(a)) {
      block.operations.push_back({operation, operation.weight.empty() ? nullptr : weight(operation.weight)});
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

at::Tensor Transformer::embed(const Microbatch& batch) const {
  return embedded(primitives_.embedding(batch.tokens_BT, *embedding_), batch);
}

at::Tensor Transformer::run_block(int layer, const at::Tensor& x_BTC, const Microbatch& batch) const {
  const Block& block = blocks_[static_cast<size_t>(layer)];
  auto site = 1 + 2 * static_cast<uint64_t>(layer);  // of the dropout of the next addition to the residual stream
  const double eps = architecture_.rms_norm_eps;
  at::Tensor stream = x_BTC, added;  // the residual stream, and what the next norm or the block's end adds to it
  at::Tensor value;                  // output of the last operation
  std::vector<at::Tensor> kept;      // outputs that live until the block ends: see Operation::output_is_temporary
  for (const auto& [operation, weight] : block.operations) {
    switch (operation.kind) {
      case OperationKind::norm:
        std::tie(value, stream) =
            added.defined() ? primitives_.add_norm(operation.function, added, stream, *weight, eps)
                            : primitives_.add_norm(operation.function, stream, {}, *weight, eps);
        kept.push_back(stream);
        break;
      case OperationKind::linear:
        value = primitives_.linear(value, *weight);
        break;
      case OperationKind::attention:
        value = primitives_.attention(value, batch, block.attention);
        break;
      case OperationKind::local:
        value = primitives_.local(operation.function, value, weight, block.attention, eps);
        break;
    }
    if (operation.to_stream) added = drop(value, batch, site++);
    if (!operation.output_is_temporary) kept.push_back(operation.to_stream ? added : value);
  }
  return stream + added;
}

at::Tensor Transformer::block(int layer, const at::Tensor& x_BTC, const Microbatch& batch) const {
  if (!options_.recompute) return run_block(layer, x_BTC, batch);
  return recompute(x_BTC, [this, layer, batch](const at::Tensor& x) { return run_block(layer, x, batch); });
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
