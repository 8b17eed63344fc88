// AttentionCore: the part of attention between rotary positions and the output projection, as a pair of functions. One
// device uses local_attention(); each form of sequence parallelism is a core of its own, and some cores wrap another.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <vector>

#include "model/attention.h"
#include "model/primitives.h"

namespace orthant {

struct AttentionCore {
  /// Takes q [B,H,T,D] and k, v [B,K,T,D] of this rank's tokens. Returns the output [B,H,T,D], followed by the tensors
  /// that backward needs.
  std::function<std::vector<at::Tensor>(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                        const Microbatch& batch, const AttentionShape& shape)>
      forward;
  /// Gradients of q, k and v, from the gradient of the output and all tensors that forward returned. The gradients of k
  /// and v may have one head for every query head; the caller sums them.
  std::function<AttentionGradients(const at::Tensor& dout, const std::vector<at::Tensor>& kept, const Microbatch& batch,
                                   const AttentionShape& shape)>
      backward;
};

/// A core that calls forward() and backward() of an object and shares its ownership.
template <class Attention>
AttentionCore core_of(std::shared_ptr<Attention> object) {
  return {.forward = [object](const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const Microbatch& batch,
                              const AttentionShape& shape) { return object->forward(q, k, v, batch, shape); },
          .backward = [object](const at::Tensor& dout, const std::vector<at::Tensor>& kept, const Microbatch& batch,
                               const AttentionShape& shape) { return object->backward(dout, kept, batch, shape); }};
}

/// The core for one device, which holds all tokens of each sequence. Uses Linformer if the shape has projections.
AttentionCore local_attention();

/// The attention primitive: applies rotary positions, if the model has them, runs the core and concatenates the heads,
/// [B,T,(H+2K)D] -> [B,T,HD]. The core must outlive the backward pass.
at::Tensor attention(const AttentionCore& core, const at::Tensor& qkv, const Microbatch& batch,
                     const AttentionShape& shape);

/// Caches the attention tiles of each packing and rule, so that all layers, forward and backward, compute them once.
/// The key does not contain the positions: use one cache for each set of positions.
class TileCache {
 public:
  // The tiles of each successive step of the core, such as a hop of the ring.
  using Tiles = std::vector<std::vector<AttentionTile>>;
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
