#include "model/attention_cache.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "base/errors.h"

namespace orthant {
namespace {

class CachedAttention {
 public:
  std::vector<at::Tensor> forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                  const Microbatch& batch, const AttentionShape& shape) {
    ORTHANT_CHECK(shape.rule.causal && !shape.linformer_k);
    Layer& layer = layers_[shape.layer];
    keep_texts(layer, batch.samples_B);
    const int64_t end = batch.sequence_length, first = end - q.size(2);
    ORTHANT_CHECK(layer.length == first, layer.length, first);
    layer.length = end;
    std::vector<int64_t> positions(static_cast<size_t>(end));
    std::iota(positions.begin(), positions.end(), 0);
    const auto queries = std::span(positions).subspan(static_cast<size_t>(first));
    const auto tiles = attention_tiles(visibility(batch, shape.rule, queries), positions);
    const int64_t most = shape.max_positions;
    return {attend(AttentionKernel::flash, q, append(layer.keys, k, first, most), append(layer.values, v, first, most),
                   tiles, shape.scores())
                .out_BHTD};
  }

 private:
  struct Layer {
    at::Tensor keys, values;  // each [B,K,capacity,D]
    at::Tensor texts_B;
    int64_t length = 0;
  };

  // Drops the texts that have ended: those that the layer holds and that are not among `texts`. Both are ascending.
  static void keep_texts(Layer& layer, const at::Tensor& texts_B) {
    const at::Tensor before = std::exchange(layer.texts_B, texts_B);
    if (!before.defined() || before.numel() == texts_B.numel()) return;
    const at::Tensor rows = at::searchsorted(before, texts_B);
    ORTHANT_CHECK(before.index_select(0, rows).equal(texts_B));
    layer.keys = layer.keys.index_select(0, rows);
    layer.values = layer.values.index_select(0, rows);
  }

  // Writes the new keys or values after the first `length` ones, and returns all of them. The capacity doubles, so
  // that a text of n tokens copies only O(n) of them.
  static at::Tensor append(at::Tensor& kept, const at::Tensor& fresh, int64_t length, int64_t most) {
    const int64_t end = length + fresh.size(2);
    if (!kept.defined() || kept.size(2) < end) {
      std::vector<int64_t> shape = fresh.sizes().vec();
      shape[2] = std::max(end, std::min(most, std::max<int64_t>(64, 2 * end)));
      const at::Tensor larger = at::empty(shape, fresh.options());
      if (kept.defined()) larger.narrow(2, 0, length).copy_(kept.narrow(2, 0, length));
      kept = larger;
    }
    kept.narrow(2, length, fresh.size(2)).copy_(fresh);
    return kept.narrow(2, 0, end);
  }

  std::map<int64_t, Layer> layers_;
};

}  // namespace

AttentionCore cached_attention() {
  return {.forward = [cache = std::make_shared<CachedAttention>()](
                         const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const Microbatch& batch,
                         const AttentionShape& shape) { return cache->forward(q, k, v, batch, shape); },
          .backward = [](const at::Tensor&, const std::vector<at::Tensor>&, const Microbatch&, const AttentionShape&)
              -> AttentionGradients { throw LogicError("attention with a cache has no backward"); }};
}

}  // namespace orthant
