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
    const at::Tensor q = at::empty({B, shape.heads, T, D}, qkv.options());
    const at::Tensor k = at::empty({B, shape.kv_heads, T, D}, qkv.options());
    const at::Tensor v = at::empty({B, shape.kv_heads, T, D}, qkv.options());
    by_element(qkv, [&]<class E>(E) {
      rope_split_forward<E>(qkv.device(), {.shape = {B, T, shape.heads, shape.kv_heads, D},
                             .tables = tables<E>(shape, held->batch.positions_BT),
                             .qkv_BTC = in<E>(qkv), .q_BHTD = out<E>(q), .k_BHTD = out<E>(k), .v_BHTD = out<E>(v)});
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
    const at::Tensor dq = g.dq_BHTD.to(type).contiguous(), dk = g.dk_BKSD.to(type).contiguous();
    const at::Tensor dv = g.dv_BKSD.to(type).contiguous();
    g = {};
    const at::Tensor dqkv = at::empty({B, T, (shape.heads + 2 * shape.kv_heads) * D}, gradients[0].options());
    by_element(dq, [&]<class E>(E) {
      rope_split_backward<E>(dq.device(), {.shape = {B, T, shape.heads, shape.kv_heads, D},
                              .tables = tables<E>(shape, held->batch.positions_BT),
                              .dq_BHTD = in<E>(dq), .dk_BHTD = in<E>(dk), .dv_BHTD = in<E>(dv),
                              .kv_per_query_head = dk.size(1) != shape.kv_heads, .dqkv_BTC = out<E>(dqkv)});
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
            const PartialAttention all = attend(AttentionKernel::flash, q, k, v, tiles_of(batch, shape), shape.scale());
            return {all.out_BHTD, q, k, v, all.lse_BHT};
          },
          .backward =
              [tiles_of, summaries = linformer_attention()](const at::Tensor& dout, const std::vector<at::Tensor>& kept,
                                                            const Microbatch& batch, const AttentionShape& shape) {
                if (shape.linformer_k) return summaries.backward(dout, kept, batch, shape);
                return attend_backward_single_block(AttentionKernel::flash, dout, kept[1], kept[2], kept[3], kept[0],
                                                    kept[4], tiles_of(batch, shape), shape.scale());
              }};
}

}  // namespace orthant
