#include "model/linformer.h"

#include <ATen/ATen.h>

#include <cmath>

#include "base/errors.h"
#include "model/cuda_device.h"
#include "model/element.h"
#include "model/linear.h"

namespace orthant {
namespace {

// Makes the channels of each head rows: [B,K,S,D] -> [BKD, S].
at::Tensor by_channel(const at::Tensor& t) { return t.transpose(2, 3).reshape({-1, t.size(2)}); }

class Linformer {
 public:
  explicit Linformer(SequenceShard part) : part_(std::move(part)) {}

  std::vector<at::Tensor> forward(const at::Tensor& q, const at::Tensor& k_in, const at::Tensor& v_in,
                                  const Microbatch& batch, const AttentionShape& shape) const {
    const at::Tensor &e = shape.linformer_k->value, &f = shape.linformer_v->value;
    ORTHANT_CHECK(!shape.rule.causal && shape.rule.sliding_window == 0, shape.rule.causal, shape.rule.sliding_window);
    ORTHANT_CHECK(!batch.packing || batch.packing->document_starts.empty(), batch.packing->document_starts.size());
    ORTHANT_CHECK(e.size(0) == k_in.size(2) && e.sizes() == f.sizes(), e.size(0), f.size(0), k_in.size(2));
    const at::Tensor k = zero_padding(k_in, batch), v = zero_padding(v_in, batch);
    const auto sums = wide(k.scalar_type());
    const at::Tensor kv = at::empty({2, k.size(0), k.size(1), e.size(1), k.size(3)}, k.options().dtype(sums));
    kv[0].copy_(at::matmul(e.detach().to(sums).t(), k.to(sums)));
    kv[1].copy_(at::matmul(f.detach().to(sums).t(), v.to(sums)));
    if (part_.sum) part_.sum(kv);
    const at::Tensor summary = part_.sum ? kv : kv.to(k.scalar_type());
    const PartialAttention all =
        attend(AttentionKernel::flash, to_sum_dtype(q), summary[0], summary[1], tiles(q, summary), shape.scores());
    return {all.out_BHTD.to(q.scalar_type()), q, k, v, summary, all.lse_BHT};
  }

  AttentionGradients backward(const at::Tensor& dout, const std::vector<at::Tensor>& kept, const Microbatch& batch,
                              const AttentionShape& shape) const {
    const at::Tensor &q = kept[1], &k = kept[2], &v = kept[3], &summary = kept[4];
    const AttentionGradients g =
        attend_backward(AttentionKernel::flash, to_sum_dtype(dout), to_sum_dtype(q), summary[0], summary[1],
                        to_sum_dtype(kept[0]), kept[5], tiles(q, summary), shape.scores());
    const at::Tensor dkv = at::stack({g.dk_BKSD, g.dv_BKSD});
    if (part_.sum) part_.sum(dkv);
    return {g.dq_BHTD, zero_padding(project_backward(*shape.linformer_k, k, dkv[0]), batch),
            zero_padding(project_backward(*shape.linformer_v, v, dkv[1]), batch)};
  }

 private:
  // For sharded sequences: converts to the precision of sums, so that the kernel does not round this shard's part of
  // the summaries' gradients.
  at::Tensor to_sum_dtype(const at::Tensor& t) const { return part_.sum ? t.to(wide(t.scalar_type())) : t; }

  // The backward of x' = E^T x, given the complete gradient of x'. Accumulates dE, the sum over batch, heads and
  // channels of x dx'^T, and returns E dx'.
  static at::Tensor project_backward(const Weight& weight, const at::Tensor& x, const at::Tensor& d_summary) {
    const auto sums = d_summary.scalar_type();
    add_weight_gradient(weight, by_channel(x).to(sums), by_channel(d_summary));
    weight.written();
    return at::matmul(weight.value.detach().to(sums), d_summary);
  }

  static std::vector<AttentionTile> tiles(const at::Tensor& q, const at::Tensor& summary) {
    return {
        {.sequence = -1, .query_end = q.size(2), .key_end = summary.size(3), .visible_begin = {}, .visible_end = {}}};
  }

  // Zeroes the positions after the end of shorter sequences.
  at::Tensor zero_padding(const at::Tensor& x_BKTD, const Microbatch& batch) const {
    if (!batch.packing || batch.packing->lengths.empty()) return x_BKTD;
    const int64_t begin = part_.begin ? part_.begin(batch.sequence_length) : 0;
    const auto numbers = x_BKTD.options().dtype(at::kLong);
    const at::Tensor lengths = at::tensor(batch.packing->lengths, at::kLong);
    const at::Tensor ends = copy_to_device(lengths, x_BKTD.device()).view({-1, 1, 1, 1});
    return x_BKTD * at::arange(begin, begin + x_BKTD.size(2), numbers).view({1, 1, -1, 1}).lt(ends);
  }

  SequenceShard part_;
};

}  // namespace

AttentionCore linformer_attention(SequenceShard part) { return core_of(std::make_shared<Linformer>(std::move(part))); }

}  // namespace orthant
