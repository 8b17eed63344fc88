// The attention primitive as an autograd function around an AttentionCore, and the core of one device.
#include "model/attention_core.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cmath>
#include <numeric>

#include "base/errors.h"
#include "model/device_kernels.h"
#include "model/element.h"
#include "model/linformer.h"

namespace orthant {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

template <class T>
RotaryTables<T> tables(const AttentionShape& shape, const at::Tensor& positions) {
  const bool rotary = shape.cos_PD.defined();
  return {rotary ? in<Wide<T>>(shape.cos_PD) : nullptr, rotary ? in<Wide<T>>(shape.sin_PD) : nullptr,
          shape.max_positions, in<int64_t>(positions), true};
}

// If q, k and v are [B,T,heads,D] in memory, attention on a GPU writes its result in that layout, so it needs no copy.
bool is_token_major(const at::Device& device) { return !device.is_cpu(); }

// State that backward needs in addition to the saved tensors.
struct Held : torch::CustomClassHolder {
  Held(const AttentionCore& core_in, const Microbatch& batch_in, const AttentionShape& shape_in)
      : core(core_in), batch(batch_in), shape(shape_in) {}
  const AttentionCore& core;
  Microbatch batch;
  AttentionShape shape;
};

struct Attention : torch::autograd::Function<Attention> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& qkv, const c10::intrusive_ptr<Held>& held) {
    const AttentionShape& shape = held->shape;
    const int64_t B = qkv.size(0), T = qkv.size(1), D = shape.head_dim;
    const bool by_token = is_token_major(qkv.device());
    const auto heads_of = [&](int64_t heads) {
      return by_token ? at::empty({B, T, heads, D}, qkv.options()).transpose(1, 2)
                      : at::empty({B, heads, T, D}, qkv.options());
    };
    const at::Tensor q = heads_of(shape.heads), k = heads_of(shape.kv_heads), v = heads_of(shape.kv_heads);
    by_element(qkv, [&]<class E>(E) {
      rope_split_forward<E>(qkv.device(), {.shape = {B, T, shape.heads, shape.kv_heads, D, by_token},
                                           .tables = tables<E>(shape, held->batch.positions_BT),
                                           .qkv_BTC = in<E>(qkv),
                                           .q = out<E>(q),
                                           .k = out<E>(k),
                                           .v = out<E>(v)});
    });
    std::vector<at::Tensor> kept = held->core.forward(q, k, v, held->batch, shape);
    const at::Tensor side_by_side = kept[0].transpose(1, 2).reshape({B, T, shape.heads * D});
    // The result and the saved output share memory.
    kept[0] = side_by_side.view({B, T, shape.heads, D}).transpose(1, 2);
    context->save_for_backward(variable_list(kept.begin(), kept.end()));
    context->saved_data["held"] = c10::IValue::make_capsule(held);
    return side_by_side;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto held = c10::static_intrusive_pointer_cast<Held>(context->saved_data["held"].toCapsule());
    const AttentionShape& shape = held->shape;
    const int64_t B = gradients[0].size(0), T = gradients[0].size(1), D = shape.head_dim;
    const at::Tensor dout = gradients[0].contiguous().view({B, T, shape.heads, D}).transpose(1, 2);
    AttentionGradients g = held->core.backward(dout, context->get_saved_variables(), held->batch, shape);
    const auto type = gradients[0].scalar_type();
    const bool by_token = is_token_major(gradients[0].device());
    const auto dense = [&](const at::Tensor& d_BHTD) {
      return by_token ? d_BHTD.to(type).transpose(1, 2).contiguous() : d_BHTD.to(type).contiguous();
    };
    const at::Tensor dq = dense(g.dq_BHTD), dk = dense(g.dk_BKSD), dv = dense(g.dv_BKSD);
    const bool per_query = g.dk_BKSD.size(1) != shape.kv_heads;
    g = {};
    const at::Tensor dqkv = at::empty({B, T, (shape.heads + 2 * shape.kv_heads) * D}, gradients[0].options());
    by_element(dq, [&]<class E>(E) {
      rope_split_backward<E>(dq.device(), {.shape = {B, T, shape.heads, shape.kv_heads, D, by_token},
                                           .tables = tables<E>(shape, held->batch.positions_BT),
                                           .dq = in<E>(dq),
                                           .dk = in<E>(dk),
                                           .dv = in<E>(dv),
                                           .kv_per_query_head = per_query,
                                           .dqkv_BTC = out<E>(dqkv)});
    });
    return {dqkv, at::Tensor()};
  }
};


}  // namespace

at::Tensor attention(const AttentionCore& core, const at::Tensor& qkv, const Microbatch& batch,
                     const AttentionShape& shape) {
  return Attention::apply(qkv, c10::make_intrusive<Held>(core, batch, shape));
}

const TileCache::Tiles& TileCache::of(const Microbatch& batch, const VisibilityRule& rule,
                                     const std::function<Tiles()>& make) {
  std::erase_if(entries_, [](const Entry& entry) { return entry.key != nullptr && entry.packing.expired(); });
  for (const Entry& entry : entries_) {
    const bool same_batch = entry.key == batch.packing.get() && entry.sequence_length == batch.sequence_length;
    if (same_batch && entry.rule == rule) return entry.tiles;
  }
  entries_.push_back({batch.packing, batch.packing.get(), batch.sequence_length, rule, make()});
  return entries_.back().tiles;
}

AttentionCore local_attention() {
  const auto cache = std::make_shared<TileCache>();
  const auto tiles_of = [cache](const Microbatch& batch,
                                const AttentionShape& shape) -> const std::vector<AttentionTile>& {
    return cache->of(batch, shape.rule, [&] {
      std::vector<int64_t> positions(static_cast<size_t>(batch.sequence_length));
      std::iota(positions.begin(), positions.end(), 0);
      return TileCache::Tiles{attention_tiles(visibility(batch, shape.rule, positions), positions)};
    })[0];
  };
  return {.forward = [tiles_of, summaries = linformer_attention()](
                         const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const Microbatch& batch,
                         const AttentionShape& shape) -> std::vector<at::Tensor> {
            if (shape.linformer_k) return summaries.forward(q, k, v, batch, shape);
            ORTHANT_CHECK(q.size(2) == batch.sequence_length, q.size(2), batch.sequence_length);
            const PartialAttention all =
                attend(AttentionKernel::flash, q, k, v, tiles_of(batch, shape), shape.scores());
            return {all.out_BHTD, q, k, v, all.lse_BHT};
          },
          .backward =
              [tiles_of, summaries = linformer_attention()](const at::Tensor& dout, const std::vector<at::Tensor>& kept,
                                                            const Microbatch& batch, const AttentionShape& shape) {
                if (shape.linformer_k) return summaries.backward(dout, kept, batch, shape);
                return attend_backward_single_block(AttentionKernel::flash, dout, kept[1], kept[2], kept[3], kept[0],
                                                    kept[4], tiles_of(batch, shape), shape.scores());
              }};
}

}  // namespace orthant
