// AttentionCore: what happens between rotary positions and the output projection, as a pair of functions. One device
// binds local_attention(); each form of sequence parallelism is a core of its own, and some are made from another.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <vector>

#include "model/attention.h"
#include "model/primitives.h"

namespace orthant {

struct AttentionCore {
  /// The output [B,H,T,D], then what backward will need; of q [B,H,T,D] and k, v [B,K,T,D] of this rank's tokens.
  std::function<std::vector<at::Tensor>(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                        const Microbatch& batch, const AttentionShape& shape)>
      forward;
  /// Gradients of q, k and v, from that of the output and all that forward returned. Those of k and v may have a head
  /// for every query head, to be summed.
  std::function<AttentionGradients(const at::Tensor& dout, const std::vector<at::Tensor>& kept, const Microbatch& batch,
                                   const AttentionShape& shape)>
      backward;
};

/// The core whose functions are an object's forward() and backward(), which lives as long as they do.
template <class Attention>
AttentionCore core_of(std::shared_ptr<Attention> object) {
  return {.forward = [object](const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const Microbatch& batch,
                              const AttentionShape& shape) { return object->forward(q, k, v, batch, shape); },
          .backward = [object](const at::Tensor& dout, const std::vector<at::Tensor>& kept, const Microbatch& batch,
                               const AttentionShape& shape) { return object->backward(dout, kept, batch, shape); }};
}

/// All tokens of the sequences are here. With Linformer's summaries where the shape has projections.
AttentionCore local_attention();

/// The primitive: rotary positions, the core, heads side by side. The core must live until backward has run.
at::Tensor attention(const AttentionCore& core, const at::Tensor& qkv, const Microbatch& batch,
                     const AttentionShape& shape);

/// The tiles of each microbatch and rule, made once for all layers, forward and backward. A cache is for one set of
/// places: nothing tells those of another apart.
class TileCache {
 public:
  using Tiles = std::vector<std::vector<AttentionTile>>;  // by hop, or whatever the core does one after the other
  const Tiles& of(const Microbatch& batch, const VisibilityRule& rule, const std::function<Tiles()>& make);

 private:
  struct Entry {
    std::weak_ptr<const Packing> packing;
    const Packing* key;
    int64_t sequence_length;
    VisibilityRule rule;
    Tiles tiles;
  };
  std::vector<Entry> entries_;
};

}  // namespace orthant
