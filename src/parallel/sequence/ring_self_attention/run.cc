#include "parallel/sequence/ring_self_attention/run.h"

#include <ATen/ATen.h>

#include <cmath>
#include <limits>
#include <numeric>

#include "base/errors.h"
#include "model/cuda_device.h"
#include "model/element.h"
#include "parallel/sequence/ring.h"

namespace orthant {
namespace {

constexpr int kKeysTag = 0, kValuesTag = 2;
constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

// The G query heads of a key head as more rows of it: [B,K,G,T,x] -> [B,K,GT,x].
at::Tensor as_rows(const at::Tensor& t) { return t.reshape({t.size(0), t.size(1), t.size(2) * t.size(3), t.size(4)}); }
// [B,K,G,T,x] [B,K,x,y] -> [B,K,G,T,y].
at::Tensor times(const at::Tensor& t, const at::Tensor& matrix) {
  return at::matmul(as_rows(t), matrix).view({t.size(0), t.size(1), t.size(2), t.size(3), matrix.size(-1)});
}
// Sum over all queries of a key head: [B,K,G,T,x] [B,K,G,T,y] -> [B,K,x,y].
at::Tensor sum_of_products(const at::Tensor& a, const at::Tensor& b) {
  return at::matmul(as_rows(a).transpose(-1, -2), as_rows(b));
}

// Views of tensors that belong to one tile of a member's keys. A row of scores has the keys of all members in their
// order in the ring; the member's keys begin at first_column.
struct Cut {
  const AttentionTile& tile;
  int64_t first_column;

  at::Tensor sequence(const at::Tensor& t) const { return tile.sequence < 0 ? t : t.narrow(0, tile.sequence, 1); }
  at::Tensor queries(const at::Tensor& t_BKGTX) const {
    return sequence(t_BKGTX).narrow(3, tile.query_begin, tile.queries());
  }
  at::Tensor keys(const at::Tensor& block_BKSD) const {
    return sequence(block_BKSD).narrow(2, tile.key_begin, tile.keys());
  }
  at::Tensor scores(const at::Tensor& row_BKGTL) const {
    return queries(row_BKGTL).narrow(4, first_column + tile.key_begin, tile.keys());
  }
  void hide(at::Tensor& scores_BKGTS) const {
    if (tile.kind == AttentionTile::full) return;
    at::Tensor hidden = at::ones({tile.queries(), tile.keys()}, at::kBool);
    if (tile.kind == AttentionTile::causal) hidden = hidden.triu_(1);
    auto* row = hidden.mutable_data_ptr<bool>();
    for (size_t q = 0; q < tile.visible_begin.size(); ++q, row += tile.keys()) {
      std::fill(row + tile.visible_begin[q], row + tile.visible_end[q], false);
    }
    scores_BKGTS.masked_fill_(copy_to_device(hidden, scores_BKGTS.device()), kMinusInfinity);
  }
};

// Scores, softmax and all sums are in float32 or float64. Kept probabilities and travelling blocks have the dtype of k.
class RingSelfAttention {
 public:
  RingSelfAttention(Comm& comm, Axes axes, RingSelfAttentionOptions options)
      : comm_(comm), axes_(std::move(axes)), options_(options), ring_{.members = {}, .index = comm.position(axes_)} {
    ring_.members.resize(static_cast<size_t>(comm.group_size(axes_)));
    std::iota(ring_.members.begin(), ring_.members.end(), 0);
  }

  std::vector<at::Tensor> forward(const at::Tensor& q_in, const at::Tensor& k, const at::Tensor& v,
                                  const Microbatch& batch, const AttentionShape& shape) {
    const Blocks blocks(*this, k, batch, shape);
    const at::Tensor q = blocks.by_key_head(q_in);
    const at::Tensor scores =
        at::full({q.size(0), q.size(1), q.size(2), q.size(3), blocks.length()}, kMinusInfinity, blocks.sums);
    visit_blocks(channel(kKeysTag), ring_, k, blocks.keys(), [&](int source, const at::Tensor& keys) {
      blocks.for_tiles(source, keys, [&](const Cut& cut, const at::Tensor& block) {
        at::Tensor part = times(cut.queries(q), block.transpose(-1, -2)).mul_(blocks.scale);
        cut.hide(part);
        cut.scores(scores).copy_(part);
      });
    });
    const at::Tensor p = softmax(scores).to(k.scalar_type());
    const at::Tensor out = at::zeros(q.sizes(), blocks.sums);
    visit_blocks(channel(kValuesTag), ring_, v, blocks.keys(), [&](int source, const at::Tensor& values) {
      blocks.for_tiles(source, values, [&](const Cut& cut, const at::Tensor& block) {
        cut.queries(out).add_(times(cut.scores(p).to(block.scalar_type()), block));
      });
    });
    return {out.to(k.scalar_type()).view(q_in.sizes()), q_in, k, v, p};
  }

  AttentionGradients backward(const at::Tensor& dout_in, const std::vector<at::Tensor>& kept, const Microbatch& batch,
                              const AttentionShape& shape) {
    const at::Tensor &k = kept[2], &v = kept[3], &p = kept[4];
    const Blocks blocks(*this, k, batch, shape);
    const at::Tensor q = blocks.by_key_head(kept[1]), dout = blocks.by_key_head(dout_in);
    const at::Tensor delta = (dout * blocks.by_key_head(kept[0])).sum(-1, true);
    const at::Tensor ds = at::zeros(p.sizes(), blocks.sums);  // holds dP first
    const at::Tensor dv = gradient(kValuesTag, v, blocks, p, dout, [&](const Cut& cut, const at::Tensor& values) {
      cut.scores(ds).copy_(times(cut.queries(dout), values.transpose(-1, -2)));
    });
    for (int member = 0; member < ring_.size(); ++member) {  // by blocks: a product of two dtypes makes a copy
      const auto columns = [&](const at::Tensor& t) { return t.narrow(4, blocks.begin(member), blocks.size(member)); };
      columns(ds).sub_(delta).mul_(columns(p)).mul_(blocks.scale);
    }
    const at::Tensor dq = at::zeros(q.sizes(), blocks.sums);
    const at::Tensor dk = gradient(kKeysTag, k, blocks, ds, q, [&](const Cut& cut, const at::Tensor& keys) {
      cut.queries(dq).add_(times(cut.scores(ds), keys));
    });
    return {dq.view(kept[1].sizes()), dk, dv};
  }

 private:
  using TileWork = std::function<void(const Cut&, const at::Tensor& block)>;

  struct Blocks {
    Blocks(RingSelfAttention& of, const at::Tensor& k, const Microbatch& batch, const AttentionShape& attention)
        : scale(attention.scores().scale),
          options(k.options()),
          sums(options.dtype(wide(k.scalar_type()))),
          shape(k.sizes().vec()) {
      ORTHANT_CHECK(attention.softcap == 0, attention.softcap);
      const int n = of.ring_.size();
      for (int member = 0; member < n; ++member) {
        positions.push_back(ring_positions(of.options_.placement, batch.sequence_length, n, member));
        ends.push_back((ends.empty() ? 0 : ends.back()) + static_cast<int64_t>(positions.back().size()));
      }
      ORTHANT_CHECK(k.size(2) == size(of.ring_.index), k.size(2), size(of.ring_.index));
      all_tiles = &of.cache_.of(batch, attention.rule, [&] {
        const Visibility seen = visibility(batch, attention.rule, positions[static_cast<size_t>(of.ring_.index)]);
        TileCache::Tiles tiles;
        for (const auto& keys : positions) tiles.push_back(attention_tiles(seen, keys));
        return tiles;
      });
    }
    int64_t size(int member) const { return static_cast<int64_t>(positions[static_cast<size_t>(member)].size()); }
    int64_t begin(int member) const { return ends[static_cast<size_t>(member)] - size(member); }
    int64_t length() const { return ends.back(); }
    bool seen(int member) const { return !(*all_tiles)[static_cast<size_t>(member)].empty(); }
    /// Calls work(cut, the tile's keys) for every tile of a member's block that this rank's queries attend to.
    void for_tiles(int member, const at::Tensor& block, const TileWork& work) const {
      if (!seen(member)) return;
      const at::Tensor exact = block.to(sums.dtype().toScalarType());
      for (const AttentionTile& tile : (*all_tiles)[static_cast<size_t>(member)]) {
        const Cut cut{tile, begin(member)};
        work(cut, cut.keys(exact));
      }
    }
    at::Tensor by_key_head(const at::Tensor& t_BHTD) const {
      return t_BHTD.to(sums.dtype().toScalarType())
          .reshape({shape[0], shape[1], t_BHTD.size(1) / shape[1], t_BHTD.size(2), shape[3]});
    }
    at::Tensor buffer(int64_t tokens, const at::TensorOptions& type) const {
      return at::empty({shape[0], shape[1], tokens, shape[3]}, type);
    }
    AllocateBlock keys() const {
      return [this](int member) { return buffer(size(member), options); };
    }

    double scale;
    at::TensorOptions options, sums;
    std::vector<int64_t> shape;  // [B, K, tokens, D]
    std::vector<std::vector<int64_t>> positions;
    std::vector<int64_t> ends;
    const TileCache::Tiles* all_tiles;
  };

  RingChannel channel(int tag) { return {comm_, axes_, tag}; }

  // Softmax of full rows, in place. A query that attends to no key gets zeros.
  static at::Tensor softmax(at::Tensor scores) {
    const at::Tensor nothing = scores.amax(-1, true).eq_(kMinusInfinity).to(at::kBool);
    at::_softmax_out(scores, scores, -1, false);
    // A GPU always fills, because the host would wait for the answer.
    if (scores.is_cuda() || nothing.any().item<bool>()) scores.masked_fill_(nothing, 0.0);
    return scores;
  }

  // The gradient of this rank's block: the sum over ranks of (the block's columns of weights)^T x. Calls `work` for
  // each tile of the blocks that pass.
  at::Tensor gradient(int tag, const at::Tensor& own, const Blocks& blocks, const at::Tensor& weights,
                      const at::Tensor& x, const TileWork& work) {
    const auto add_weight_product = [&](int source, const at::Tensor& block, const at::Tensor& share) {
      blocks.for_tiles(source, block, [&](const Cut& cut, const at::Tensor& keys) {
        work(cut, keys);
        cut.keys(share).add_(sum_of_products(cut.scores(weights).to(x.scalar_type()), cut.queries(x)));
      });
    };
    if (options_.all_reduce) {
      const at::Tensor all = blocks.buffer(blocks.length(), blocks.sums).zero_();
      const auto rows = [&](int member) { return all.narrow(2, blocks.begin(member), blocks.size(member)); };
      visit_blocks(channel(tag), ring_, own, blocks.keys(),
                   [&](int source, const at::Tensor& block) { add_weight_product(source, block, rows(source)); });
      comm_.all_reduce(all, axes_).wait();
      return rows(ring_.index).clone();  // a copy, so that the other ranks' rows are freed
    }
    return sum_over_blocks(
        channel(tag), ring_, own, blocks.keys(),
        [&](int member) { return blocks.buffer(blocks.size(member), blocks.sums); },
        [&](int source, const at::Tensor& block) -> at::Tensor {
          if (!blocks.seen(source)) return {};
          const at::Tensor share = blocks.buffer(blocks.size(source), blocks.sums).zero_();
          add_weight_product(source, block, share);
          return share;
        });
  }

  Comm& comm_;
  const Axes axes_;
  const RingSelfAttentionOptions options_;
  Ring ring_;
  TileCache cache_;
};

}  // namespace

AttentionCore ring_self_attention(Comm& comm, Axes axes, RingSelfAttentionOptions options) {
  return core_of(std::make_shared<RingSelfAttention>(comm, std::move(axes), options));
}

}  // namespace orthant
