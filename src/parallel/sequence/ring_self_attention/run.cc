#include "parallel/sequence/ring_self_attention/run.h"

#include <ATen/ATen.h>

#include <cmath>
#include <numeric>

#include "base/errors.h"
#include "model/element.h"
#include "parallel/sequence/ring.h"

namespace orthant {
namespace {

constexpr int kKeysTag = 0, kValuesTag = 2;

class RingSelfAttention {
 public:
  RingSelfAttention(Comm& comm, Axes axes, RingSelfAttentionOptions options)
      : comm_(comm), axes_(std::move(axes)), options_(options), ring_{.members = {}, .index = comm.position(axes_)} {
    ring_.members.resize(static_cast<size_t>(comm.group_size(axes_)));
    std::iota(ring_.members.begin(), ring_.members.end(), 0);
  }

  std::vector<at::Tensor> forward(const at::Tensor& q_in, const at::Tensor& k, const at::Tensor& v,
                                  const Microbatch& batch, const AttentionShape& shape) {
    const Blocks blocks(*this, k, batch);
    const at::Tensor q = by_key_head(q_in, k.size(1));
    at::Tensor scores = at::empty({q.size(0), q.size(1), q.size(2), blocks.length()}, q.options());
    visit_blocks(channel(kKeysTag), ring_, k, blocks.keys(), [&](int source, const at::Tensor& keys) {
      blocks.columns(scores, source).copy_(at::matmul(q, keys.transpose(-1, -2)));
    });
    const at::Tensor p = softmax(scores, batch, shape, blocks);
    at::Tensor out = at::zeros(q.sizes(), q.options());
    visit_blocks(channel(kValuesTag), ring_, v, blocks.keys(), [&](int source, const at::Tensor& values) {
      out.add_(at::matmul(blocks.columns(p, source), values));
    });
    return {by_query_head(out, q_in), q_in, k, v, p};
  }

  AttentionGradients backward(const at::Tensor& dout_in, const std::vector<at::Tensor>& kept, const Microbatch& batch,
                              const AttentionShape& shape) {
    const at::Tensor &q_in = kept[1], &k = kept[2], &v = kept[3], &p = kept[4];
    const Blocks blocks(*this, k, batch);
    const at::Tensor q = by_key_head(q_in, k.size(1)), dout = by_key_head(dout_in, k.size(1));
    at::Tensor ds = at::empty_like(p);  // dP first
    const at::Tensor dv = ring_gradient(kValuesTag, v, blocks, p, dout, [&](int source, const at::Tensor& values) {
      blocks.columns(ds, source).copy_(at::matmul(dout, values.transpose(-1, -2)));
    });
    softmax_backward(ds, p, scale_of(shape));
    at::Tensor dq = at::zeros(q.sizes(), blocks.sums);
    const at::Tensor dk = ring_gradient(kKeysTag, k, blocks, ds, q, [&](int source, const at::Tensor& keys) {
      dq.add_(at::matmul(blocks.columns(ds, source), keys));
    });
    return {by_query_head(dq, q_in), dk, dv};
  }

 private:
  struct Blocks {
    Blocks(const RingSelfAttention& of, const at::Tensor& k, const Microbatch& batch)
        : options(k.options()), sums(options.dtype(wide(k.scalar_type()))), shape(k.sizes().vec()) {
      const int n = of.ring_.size();
      for (int member = 0; member < n; ++member) {
        places.push_back(ring_places(of.options_.placement, batch.sequence_length, n, member));
        ends.push_back((ends.empty() ? 0 : ends.back()) + static_cast<int64_t>(places.back().size()));
      }
      ORTHANT_CHECK(k.size(2) == size(of.ring_.index), k.size(2), size(of.ring_.index));
    }
    int64_t size(int member) const { return static_cast<int64_t>(places[static_cast<size_t>(member)].size()); }
    int64_t length() const { return ends.back(); }
    /// A member's columns of scores, which stand in the order of the members.
    at::Tensor columns(const at::Tensor& t, int member) const {
      return t.narrow(3, ends[static_cast<size_t>(member)] - size(member), size(member));
    }
    at::Tensor rows(const at::Tensor& t, int member) const {
      return t.narrow(2, ends[static_cast<size_t>(member)] - size(member), size(member));
    }
    at::Tensor buffer(int member, const at::TensorOptions& type) const {
      auto block = shape;
      block[2] = size(member);
      return at::empty(block, type);
    }
    NewBlock keys() const {
      return [this](int member) { return buffer(member, options); };
    }

    at::TensorOptions options, sums;
    std::vector<int64_t> shape;  // [B, K, tokens, D]
    std::vector<std::vector<int64_t>> places;
    std::vector<int64_t> ends;
  };

  // Query heads that share a key head as more rows of it: [B, H, T, D] -> [B, K, H/K T, D].
  static at::Tensor by_key_head(const at::Tensor& t, int64_t key_heads) {
    return t.reshape({t.size(0), key_heads, t.size(1) / key_heads * t.size(2), t.size(3)});
  }
  static at::Tensor by_query_head(const at::Tensor& t, const at::Tensor& like) { return t.view(like.sizes()); }
  static double scale_of(const AttentionShape& shape) { return 1 / std::sqrt(static_cast<double>(shape.head_dim)); }
  RingChannel channel(int tag) { return {comm_, axes_, tag}; }

  // Of whole rows, in place where the type allows; a query that sees nothing gets zeros.
  at::Tensor softmax(at::Tensor scores, const Microbatch& batch, const AttentionShape& shape, const Blocks& blocks) const {
    const int64_t rows = blocks.size(ring_.index);
    scores.mul_(scale_of(shape));
    const Visibility seen = visibility(batch, shape.rule, blocks.places[static_cast<size_t>(ring_.index)]);
    at::Tensor hidden = at::empty({seen.sequences, 1, 1, rows, blocks.length()}, at::kBool);
    bool* at_pair = hidden.mutable_data_ptr<bool>();
    for (size_t i = 0; i < seen.first.size(); ++i) {
      for (const auto& member : blocks.places) {
        for (const int64_t place : member) *at_pair++ = place < seen.first[i] || place >= seen.end[i];
      }
    }
    const at::Tensor by_token = scores.view({scores.size(0), scores.size(1), -1, rows, blocks.length()});
    const at::Tensor nothing = hidden.all(-1, true);
    by_token.masked_fill_(hidden & nothing.logical_not(), -INFINITY);
    at::Tensor p = at::softmax(scores, -1);
    p.view(by_token.sizes()).masked_fill_(nothing, 0.0);
    return p;
  }

  // dS = P (dP - rowsum(dP P)) scale, over dP.
  static void softmax_backward(at::Tensor& dp, const at::Tensor& p, double scale) {
    const at::Tensor delta = at::sum(dp * p, {-1}, true, wide(dp.scalar_type())).to(dp.scalar_type());
    dp.sub_(delta).mul_(p).mul_(scale);
  }

  // The gradient of this rank's block: the sum over ranks of (columns of weights)^T x. `work` sees each block on the way.
  at::Tensor ring_gradient(int tag, const at::Tensor& own, const Blocks& blocks, const at::Tensor& weights,
                           const at::Tensor& x, const std::function<void(int, const at::Tensor&)>& work) {
    if (!options_.all_reduce) {
      return sum_over_blocks(channel(tag), ring_, own, blocks.keys(),
                             [&](int member) { return blocks.buffer(member, blocks.sums); },
                             [&](int source, const at::Tensor& block) {
                               work(source, block);
                               return at::matmul(blocks.columns(weights, source).transpose(-1, -2), x)
                                   .to(blocks.sums.dtype().toScalarType())
                                   .contiguous();
                             });
    }
    visit_blocks(channel(tag), ring_, own, blocks.keys(), work);
    const at::Tensor all = at::matmul(weights.transpose(-1, -2), x).contiguous();
    comm_.all_reduce(all, axes_).wait();
    return blocks.rows(all, ring_.index);
  }

  Comm& comm_;
  const Axes axes_;
  const RingSelfAttentionOptions options_;
  Ring ring_;
};

}  // namespace

AttentionCore ring_self_attention(Comm& comm, Axes axes, RingSelfAttentionOptions options) {
  const auto ring = std::make_shared<RingSelfAttention>(comm, std::move(axes), options);
  return {.forward = [ring](const auto& q, const auto& k, const auto& v, const auto& batch,
                            const auto& shape) { return ring->forward(q, k, v, batch, shape); },
          .backward = [ring](const auto& dout, const auto& kept, const auto& batch,
                             const auto& shape) { return ring->backward(dout, kept, batch, shape); }};
}

}  // namespace orthant
