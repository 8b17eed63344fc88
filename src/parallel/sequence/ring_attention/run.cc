#include "parallel/sequence/ring_attention/run.h"

#include <ATen/ATen.h>

#include <cmath>
#include <utility>

#include "base/errors.h"
#include "model/element.h"
#include "parallel/sequence/ring.h"

namespace orthant {
namespace {

// Tags of the inner and the outer ring, which are active at the same time. Sums use the tag after each.
constexpr int kInnerTag = 0, kOuterTag = 2;

class RingAttention {
 public:
  RingAttention(Comm& comm, Axes axes, RingAttentionOptions options)
      : comm_(comm),
        axes_(std::move(axes)),
        options_(options),
        size_(comm.group_size(axes_)),
        rings_(double_ring(size_, comm.position(axes_), options.window > 0 ? options.window : size_)) {}

  std::vector<at::Tensor> forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                  const Microbatch& batch, const AttentionShape& shape) {
    const Blocks blocks(*this, k, batch, shape);
    // Attention of each block is computed in the precision of sums. A kernel that rounds each block's output to
    // bfloat16 would lose the digits that the sums keep.
    const auto sums = wide(q.scalar_type());
    const at::Tensor exact_q = q.to(sums);
    PartialAttention all;
    visit(blocks, at::stack({k, v}), [&](int member, const at::Tensor& block) {
      const auto& tiles = blocks.tiles(member);
      if (all.out_BHTD.defined() && tiles.empty()) return;
      const at::Tensor exact = block.to(sums);
      const PartialAttention part = attend(options_.kernel, exact_q, exact[0], exact[1], tiles, blocks.rule);
      if (all.out_BHTD.defined()) {
        merge_partial_attention(all, part);
      } else {
        all = part;
      }
    });
    return {all.out_BHTD.to(q.scalar_type()), q, k, v, all.lse_BHT};
  }

  AttentionGradients backward(const at::Tensor& dout, const std::vector<at::Tensor>& kept, const Microbatch& batch,
                              const AttentionShape& shape) {
    const at::Tensor &k = kept[2], &v = kept[3], &lse = kept[4];
    const Blocks blocks(*this, k, batch, shape);
    const auto sums = wide(k.scalar_type());
    const at::Tensor out = kept[0].to(sums), q = kept[1].to(sums), exact_dout = dout.to(sums);
    const at::Tensor dq = at::zeros(q.sizes(), lse.options());
    // For some of the heads: adds to dq, and returns this rank's partial sum for the block's keys and values.
    const auto gradients = [&](const at::Tensor& keys, const at::Tensor& values, const Heads& some, int member) {
      const AttentionGradients share = attend_backward(
          options_.kernel, some.queries(exact_dout), some.queries(q), some.keys(keys).to(sums),
          some.keys(values).to(sums), some.queries(out), some.queries(lse), blocks.tiles(member), blocks.rule);
      some.queries(dq).add_(share.dq_BHTD);
      return at::stack({share.dk_BKSD, share.dv_BKSD});
    };
    // The first half of the own block's work hides the first block's arrival, the second half that of the last sum.
    const Heads all{{0, shape.heads}, {0, shape.kv_heads}};
    const auto [first, last] = halves(shape);
    const bool halved = size_ > 1 && last.query.size() > 0;
    const auto share = [&](int member, const at::Tensor& block) -> at::Tensor {
      if (blocks.tiles(member).empty()) return {};
      if (member != own() || !halved) return gradients(block[0], block[1], all, member);
      const at::Tensor half = blocks.buffer(member, blocks.sums).zero_();
      first.keys(half, 2).copy_(gradients(block[0], block[1], first, member));
      return half;
    };
    const auto rest = [&](const at::Tensor& own_partial_sum) {
      if (halved && !blocks.tiles(own()).empty()) last.keys(own_partial_sum, 2).add_(gradients(k, v, last, own()));
    };
    const at::Tensor dkv = sum(blocks, at::stack({k, v}), share, rest);
    return {dq, dkv[0], dkv[1]};
  }

 private:
  // Query heads, and the key heads that they read.
  struct Heads {
    Range query, key;
    at::Tensor queries(const at::Tensor& x_BHT) const { return x_BHT.narrow(1, query.begin, query.size()); }
    at::Tensor keys(const at::Tensor& x, int64_t axis = 1) const { return x.narrow(axis, key.begin, key.size()); }
  };

  // Two halves of the heads: split by key heads, or by the query heads of a single key head. With a single query head
  // the second half is empty.
  static std::pair<Heads, Heads> halves(const AttentionShape& shape) {
    const int64_t H = shape.heads, K = shape.kv_heads, keys = K / 2, queries = K > 1 ? keys * (H / K) : (H + 1) / 2;
    const int64_t shared = K > 1 ? keys : 1;  // where the first half's key heads end
    return {{{0, queries}, {0, shared}}, {{queries, H}, {keys, K}}};
  }

  // Keys and values of all members: blocks [2, B, K, tokens, D].
  struct Blocks {
    Blocks(RingAttention& ring, const at::Tensor& k, const Microbatch& batch, const AttentionShape& shape)
        : rule(shape.scores()),
          options(k.options()),
          sums(options.dtype(wide(k.scalar_type()))),
          sizes{2, k.size(0), k.size(1), 0, k.size(3)},
          positions(ring.size_) {
      for (int member = 0; member < ring.size_; ++member) {
        positions[static_cast<size_t>(member)] =
            ring_positions(ring.options_.placement, batch.sequence_length, ring.size_, member);
      }
      const auto& own = positions[static_cast<size_t>(ring.own())];
      ORTHANT_CHECK(k.size(2) == static_cast<int64_t>(own.size()), k.size(2), own.size());
      all_tiles = &ring.cache_.of(batch, shape.rule, [&] {
        const Visibility seen = visibility(batch, shape.rule, own);
        TileCache::Tiles tiles;
        for (const auto& keys : positions) tiles.push_back(attention_tiles(seen, keys));
        return tiles;
      });
    }

    const std::vector<AttentionTile>& tiles(int member) const { return (*all_tiles)[static_cast<size_t>(member)]; }
    at::Tensor buffer(int member, const at::TensorOptions& type) const {
      auto shape = sizes;
      shape[3] = static_cast<int64_t>(positions[static_cast<size_t>(member)].size());
      return at::empty(shape, type);
    }

    ScoreRule rule;
    at::TensorOptions options, sums;
    std::vector<int64_t> sizes;
    std::vector<std::vector<int64_t>> positions;
    const TileCache::Tiles* all_tiles;
  };

  int own() const { return rings_.member(rings_.outer.index, rings_.inner.index); }
  RingChannel channel(int tag) { return {comm_, axes_, tag}; }

  // Calls work(member, block) for all blocks, window after window.
  void visit(const Blocks& blocks, at::Tensor own_block, const std::function<void(int, const at::Tensor&)>& work) {
    const auto buffer = [&](int window, int index) {
      return blocks.buffer(rings_.member(window, index), blocks.options);
    };
    visit_blocks(
        channel(kOuterTag), rings_.outer, std::move(own_block),
        [&](int window) { return buffer(window, rings_.inner.index); },
        [&](int window, at::Tensor windows_block) {
          visit_blocks(
              channel(kInnerTag), rings_.inner, std::move(windows_block),
              [&](int index) { return buffer(window, index); },
              [&](int index, const at::Tensor& block) { work(rings_.member(window, index), block); });
        });
  }

  // work(member, block) returns this rank's partial sum. Returns the sum over all ranks for this rank's own block:
  // first inside each window, then over the windows.
  at::Tensor sum(const Blocks& blocks, at::Tensor own_block,
                 const std::function<at::Tensor(int, const at::Tensor&)>& work,
                 const std::function<void(at::Tensor)>& rest) {
    const bool windows = rings_.outer.size() > 1;  // sums of the outer ring arrive last, so `rest` runs there
    const auto buffer = [&](int window, int index) {
      return blocks.buffer(rings_.member(window, index), blocks.options);
    };
    const auto sums = [&](int window, int index) { return blocks.buffer(rings_.member(window, index), blocks.sums); };
    return sum_over_blocks(
        channel(kOuterTag), rings_.outer, std::move(own_block),
        [&](int window) { return buffer(window, rings_.inner.index); },
        [&](int window) { return sums(window, rings_.inner.index); },
        [&](int window, at::Tensor windows_block) {
          return sum_over_blocks(
              channel(kInnerTag), rings_.inner, std::move(windows_block),
              [&](int index) { return buffer(window, index); }, [&](int index) { return sums(window, index); },
              [&](int index, const at::Tensor& block) { return work(rings_.member(window, index), block); },
              windows ? nullptr : rest);
        },
        windows ? rest : nullptr);
  }

  Comm& comm_;
  const Axes axes_;
  const RingAttentionOptions options_;
  const int size_;
  const DoubleRing rings_;
  TileCache cache_;
};

}  // namespace

AttentionCore ring_attention(Comm& comm, Axes axes, RingAttentionOptions options) {
  return core_of(std::make_shared<RingAttention>(comm, std::move(axes), options));
}

}  // namespace orthant
