#include "parallel/sequence/ulysses/run.h"

#include <ATen/ATen.h>

#include <numeric>

#include "base/errors.h"
#include "model/cuda_device.h"
#include "model/element.h"
#include "parallel/sequence/ulysses/heads_plan.h"

namespace orthant {
namespace {

int64_t sum_of(const std::vector<int64_t>& counts) { return std::reduce(counts.begin(), counts.end()); }

// One side of an all-to-all: one buffer with a piece for each rank, and in each piece parts of several tensors.
struct Pieces {
  std::vector<int64_t> counts;                            // elements, by rank
  std::vector<std::vector<std::vector<int64_t>>> shapes;  // [rank][tensor]

  void add(std::vector<std::vector<int64_t>> tensors) {
    int64_t count = 0;
    for (const auto& shape : tensors) count += c10::multiply_integers(shape);
    counts.push_back(count);
    shapes.push_back(std::move(tensors));
  }
  /// Views of the buffer, [rank][tensor].
  std::vector<std::vector<at::Tensor>> in(const at::Tensor& buffer) const {
    std::vector<std::vector<at::Tensor>> views;
    int64_t begin = 0;
    for (const auto& tensors : shapes) {
      auto& row = views.emplace_back();
      for (const auto& shape : tensors) {
        const int64_t count = c10::multiply_integers(shape);
        row.push_back(buffer.narrow(0, begin, count).view(shape));
        begin += count;
      }
    }
    return views;
  }
};

class Ulysses {
 public:
  Ulysses(Comm& comm, Axes axes, UlyssesCoordinates place, AttentionCore inner)
      : comm_(comm),
        axes_(std::move(axes)),
        place_(place),
        inner_(std::move(inner)),
        ranks_(comm.group_size(axes_)),
        rank_(comm.position(axes_)) {}

  std::vector<at::Tensor> forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                  const Microbatch& batch, const AttentionShape& shape) {
    const Cut cut(*this, batch, shape);
    std::vector<at::Tensor> mine = to_heads(cut, {q, k, v}, {Kind::query, Kind::key, Kind::key});
    if (!cut.regular) {  // repeat key heads, one for every query head
      for (size_t i : {1, 2}) mine[i] = mine[i].index_select(1, cut.key_of_query(q.device()));
    }
    std::vector<at::Tensor> kept = inner_.forward(mine[0], mine[1], mine[2], batch, cut.shape);
    const at::Tensor out = to_tokens(cut, {kept[0]}, {Kind::query})[0];
    kept.insert(kept.begin(), out);
    return kept;
  }

  AttentionGradients backward(const at::Tensor& dout, const std::vector<at::Tensor>& kept, const Microbatch& batch,
                              const AttentionShape& shape) {
    const Cut cut(*this, batch, shape);
    AttentionGradients g = inner_.backward(to_heads(cut, {dout}, {Kind::query}, true)[0],
                                           {kept.begin() + 1, kept.end()}, batch, cut.shape);
    for (at::Tensor* d : {&g.dk_BKSD, &g.dv_BKSD}) {
      if (d->size(1) == cut.own.key.size()) continue;  // otherwise it has one head for every query head
      auto sizes = d->sizes().vec();
      sizes[1] = cut.own.key.size();
      *d = at::zeros(sizes, d->options().dtype(wide(d->scalar_type())))
               .index_add_(1, cut.key_of_query(dout.device()), d->to(wide(d->scalar_type())));
    }
    const auto type = dout.scalar_type();
    std::vector<at::Tensor> gradients = {g.dq_BHTD.to(type), g.dk_BKSD.to(type), g.dv_BKSD.to(type)};
    g = {};
    const auto back = to_tokens(cut, std::move(gradients), {Kind::query, Kind::key, Kind::key});
    return {back[0], back[1], back[2]};
  }

 private:
  enum class Kind { query, key };

  // Tokens and heads of all ranks of the group.
  struct Cut {
    Cut(const Ulysses& of, const Microbatch& batch, const AttentionShape& all_heads)
        : heads(all_heads.heads), key_heads(all_heads.kv_heads), shape(all_heads) {
      for (int u = 0; u < of.ranks_; ++u) {
        shares.push_back(head_shard(heads, key_heads, of.ranks_, u));
        tokens.push_back(
            num_held_positions(of.place_.placement, batch.sequence_length, of.ranks_, u, of.place_.ring, of.place_.r));
      }
      own = shares[static_cast<size_t>(of.rank_)];
      regular = own.regular(heads, key_heads);
      shape.heads = own.query.size();
      shape.kv_heads = regular ? own.key.size() : own.query.size();
    }
    at::Tensor key_of_query(const at::Device& device) const {
      std::vector<int64_t> keys;
      for (int64_t i = 0; i < own.query.size(); ++i) keys.push_back(own.key_of(i, heads, key_heads));
      return copy_to_device(at::tensor(keys, at::kLong), device);
    }
    Range heads_of(size_t rank, Kind kind) const { return kind == Kind::query ? shares[rank].query : shares[rank].key; }

    int64_t heads, key_heads;
    AttentionShape shape;  // of the inner core: this rank's heads
    std::vector<HeadShard> shares;
    std::vector<int64_t> tokens;
    HeadShard own;
    bool regular = true;
  };

  // Pieces by rank: that rank's heads of this rank's tokens, and this rank's heads of that rank's tokens. to_heads()
  // sends the first and receives the second; to_tokens() does the reverse.
  std::pair<Pieces, Pieces> pieces_of(const Cut& cut, const std::vector<Kind>& kinds, const at::Tensor& like) const {
    Pieces of_tokens, of_heads;
    const int64_t B = like.size(0), D = like.size(3);
    const auto own = static_cast<size_t>(rank_);
    for (size_t u = 0; u < cut.tokens.size(); ++u) {
      std::vector<std::vector<int64_t>> heads_there, tokens_there;
      for (const Kind kind : kinds) {
        heads_there.push_back({B, cut.heads_of(u, kind).size(), cut.tokens[own], D});
        tokens_there.push_back({B, cut.heads_of(own, kind).size(), cut.tokens[u], D});
      }
      of_tokens.add(heads_there);
      of_heads.add(tokens_there);
    }
    return {of_tokens, of_heads};
  }

  // [B, all heads, own tokens, D] -> [B, own heads, all tokens, D]. side_by_side: the memory is [B, tokens, heads, D],
  // which kernels expect of the output's gradient and otherwise copy to.
  std::vector<at::Tensor> to_heads(const Cut& cut, std::vector<at::Tensor> tensors, const std::vector<Kind>& kinds,
                                   bool side_by_side = false) {
    const auto& [leaving, arriving] = pieces_of(cut, kinds, tensors[0]);
    at::Tensor buffer = at::empty({sum_of(leaving.counts)}, tensors[0].options());
    auto parts = leaving.in(buffer);
    for (size_t u = 0; u < parts.size(); ++u) {
      for (size_t t = 0; t < tensors.size(); ++t) {
        const Range heads = cut.heads_of(u, kinds[t]);
        parts[u][t].copy_(tensors[t].narrow(1, heads.begin, heads.size()));
      }
    }
    parts.clear(), tensors.clear();
    const at::Tensor received = exchange(std::move(buffer), leaving, arriving);
    std::vector<at::Tensor> whole;
    const auto pieces = arriving.in(received);
    for (size_t t = 0; t < kinds.size(); ++t) {
      std::vector<at::Tensor> by_rank;
      for (const auto& row : pieces) by_rank.push_back(side_by_side ? row[t].transpose(1, 2) : row[t]);
      whole.push_back(side_by_side ? at::cat(by_rank, 1).transpose(1, 2) : at::cat(by_rank, 2));
    }
    return whole;
  }

  // [B, own heads, all tokens, D] -> [B, all heads, own tokens, D]. A key head that several ranks have is summed.
  std::vector<at::Tensor> to_tokens(const Cut& cut, std::vector<at::Tensor> tensors, const std::vector<Kind>& kinds) {
    const auto& [arriving, leaving] = pieces_of(cut, kinds, tensors[0]);
    const int64_t B = tensors[0].size(0), D = tensors[0].size(3);
    const auto own = static_cast<size_t>(rank_);
    at::Tensor buffer = at::empty({sum_of(leaving.counts)}, tensors[0].options());
    auto parts = leaving.in(buffer);
    int64_t token = 0;
    for (size_t u = 0; u < parts.size(); ++u) {
      for (size_t t = 0; t < tensors.size(); ++t) parts[u][t].copy_(tensors[t].narrow(2, token, cut.tokens[u]));
      token += cut.tokens[u];
    }
    const at::TensorOptions own_type = buffer.options();
    parts.clear(), tensors.clear();
    const auto pieces = arriving.in(exchange(std::move(buffer), leaving, arriving));
    std::vector<at::Tensor> whole;
    for (size_t t = 0; t < kinds.size(); ++t) {
      const bool shared = kinds[t] == Kind::key && cut.key_heads < ranks_;
      const int64_t heads = kinds[t] == Kind::query ? cut.heads : cut.key_heads;
      // The memory is [B, tokens, heads, D], as the output projection expects it.
      const auto options = shared ? own_type.dtype(wide(own_type.dtype().toScalarType())) : own_type;
      at::Tensor all = at::zeros({B, cut.tokens[own], heads, D}, options).transpose(1, 2);
      for (size_t u = 0; u < pieces.size(); ++u) {
        const Range range = cut.heads_of(u, kinds[t]);
        at::Tensor place = all.narrow(1, range.begin, range.size());
        if (shared) {
          place.add_(pieces[u][t]);
        } else {
          place.copy_(pieces[u][t]);
        }
      }
      whole.push_back(all);
    }
    return whole;
  }

  // Takes the send buffer by value, so that it is freed before the caller builds tensors from the received one.
  at::Tensor exchange(at::Tensor buffer, const Pieces& leaving, const Pieces& arriving) {
    const at::Tensor received = at::empty({sum_of(arriving.counts)}, buffer.options());
    comm_.all_to_all(received, buffer, axes_, arriving.counts, leaving.counts).wait();
    return received;
  }

  Comm& comm_;
  const Axes axes_;
  const UlyssesCoordinates place_;
  const AttentionCore inner_;
  const int ranks_, rank_;
};

}  // namespace

AttentionCore ulysses(Comm& comm, Axes axes, UlyssesCoordinates place, AttentionCore inner) {
  return core_of(std::make_shared<Ulysses>(comm, std::move(axes), place, std::move(inner)));
}

}  // namespace orthant
