// The all-to-all of Ulysses moves each element to the right rank, and its backward is the exact adjoint (Unified
// Sequence Parallelism, check 2). Elements are numbered by token, head and lane, where a lane is an index along the
// head's dim.
#include "parallel/sequence/ulysses/heads_plan.h"
#include "tests/parallel/sequence/core_on_ranks.h"

namespace orthant::all_to_all_test {
namespace {

constexpr int64_t kLanes = 3;

// A tensor [1, heads, tokens, lanes] with the elements 1e6 token + 1e3 head + lane.
at::Tensor labelled(const std::vector<int64_t>& tokens, int64_t first_head, int64_t heads) {
  const auto along = [](const at::Tensor& t, int64_t dim, double weight) {
    std::vector<int64_t> shape(4, 1);
    shape[static_cast<size_t>(dim)] = t.numel();
    return t.to(at::kDouble).view(shape) * weight;
  };
  return along(at::arange(first_head, first_head + heads), 1, 1e3) + along(at::tensor(tokens, at::kLong), 2, 1e6) +
         along(at::arange(kLanes), 3, 1);
}

struct Moved {
  AttentionCase c;
  int u = 0, r = 0;
  std::vector<int64_t> held, block;
  HeadShard share;
};

// Runs on_rank() on every rank with a Ulysses core. Its inner core, made by `inner`, checks its inputs and returns
// prescribed tensors.
using Inner = std::function<AttentionCore(const Moved&)>;
using OnMoved = std::function<void(const Moved&, const AttentionCore&, const Microbatch&, const AttentionShape&)>;

void on_all(const AttentionCase& c, const Inner& inner, const OnMoved& on_rank) {
  run_ranks(c.ulysses * c.ring, [&](Rendezvous rendezvous, int rank) {
    Comm comm(c.mesh(), rank, rendezvous, {});
    Moved m{.c = c, .u = comm.position(kOverUlysses), .r = comm.position(kOverRing)};
    m.held = held_positions(c.placement, c.length, c.ulysses, m.u, c.ring, m.r);
    m.block = ring_positions(c.placement, c.length, c.ring, m.r);
    m.share = head_shard(c.heads, c.key_heads, c.ulysses, m.u);
    const AttentionCore core = ulysses(comm, kOverUlysses, {c.placement, c.ring, m.r}, inner(m));
    on_rank(m, core, batch_of(c, at::tensor(m.held, at::kLong)), shape_of(c));
  });
}

std::vector<AttentionCase> cases() {
  std::vector<AttentionCase> all;
  for (const auto& [u, r] : {std::pair{2, 1}, {4, 1}, {2, 2}, {4, 2}, {2, 4}, {8, 1}, {3, 2}}) {
    for (const auto placement : kPlacements) {
      for (const auto& [heads, key_heads] : {std::pair{8, 8}, {8, 2}}) {
        all.push_back({.ulysses = u,
                       .ring = r,
                       .placement = placement,
                       .sequences = 1,
                       .length = 29,
                       .heads = heads,
                       .key_heads = key_heads,
                       .head_dim = kLanes});
      }
    }
  }
  // With 8 key heads on 16 Ulysses ranks, two ranks read each key head.
  all.push_back({.ulysses = 16, .sequences = 1, .length = 32, .heads = 32, .key_heads = 8, .head_dim = kLanes});
  return all;
}

// The key heads that a rank's inner core receives. If its query heads do not divide evenly among its key heads, it
// receives one key head for each query head.
at::Tensor keys_of(const Moved& m, const at::Tensor& own) {
  if (m.share.regular(m.c.heads, m.c.key_heads)) return own;
  std::vector<int64_t> key;
  for (int64_t i = 0; i < m.share.query.size(); ++i) key.push_back(m.share.key_of(i, m.c.heads, m.c.key_heads));
  return own.index_select(1, at::tensor(key, at::kLong));
}

// The inner core receives all tokens of the ring rank's block in order, for its heads. The output returns to the ranks
// that hold its tokens.
TEST(AllToAll, GathersTheBlockInOrderAndReturnsIt) {
  for (const AttentionCase& c : cases()) {
    const auto whole = [&](const std::vector<int64_t>& tokens, bool keys) {
      return labelled(tokens, 0, keys ? c.key_heads : c.heads);
    };
    on_all(
        c,
        [](const Moved& m) {
          return AttentionCore{
              .forward =
                  [m](const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const auto&, const auto&) {
                    const at::Tensor own = labelled(m.block, m.share.key.begin, m.share.key.size());
                    EXPECT_TRUE(q.equal(labelled(m.block, m.share.query.begin, m.share.query.size()))) << name_of(m.c);
                    EXPECT_TRUE(k.equal(keys_of(m, own))) << name_of(m.c);
                    EXPECT_TRUE(v.equal(-keys_of(m, own))) << name_of(m.c);
                    return std::vector<at::Tensor>{q};
                  },
              .backward = {}};
        },
        [&](const Moved& m, const AttentionCore& core, const Microbatch& batch, const AttentionShape& shape) {
          const at::Tensor q = whole(m.held, false), k = whole(m.held, true);
          EXPECT_TRUE(core.forward(q, k, -k, batch, shape)[0].equal(q)) << name_of(c);
          if (c.ulysses == 16) {
            EXPECT_EQ(m.share.key.begin, m.u / 2);
          }
        });
  }
}

double inner_product(const at::Tensor& a, const at::Tensor& b) { return (a * b).sum().item<double>(); }

// <A x, y> = <x, A* y> over all ranks, where A is the forward movement of q, k and v and A* the backward one. The same
// holds for the output. Small integers make both sides exact.
TEST(AllToAll, BackwardIsTheAdjoint) {
  const auto integers = [](const at::Tensor& like, uint32_t seed) {
    return (reference_values(like.sizes(), seed) * 2).round();
  };
  for (const AttentionCase& c : cases()) {
    std::mutex mutex;
    double there = 0, back = 0, out_there = 0, out_back = 0;
    on_all(
        c,
        [&](const Moved& m) {
          const auto seed = static_cast<uint32_t>(10 * (1 + m.u + c.ulysses * m.r));
          return AttentionCore{
              .forward =
                  [&, seed](const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const auto&, const auto&) {
                    const at::Tensor out = integers(q, seed + 4);
                    const std::lock_guard lock(mutex);
                    there += inner_product(q, integers(q, seed + 1)) + inner_product(k, integers(k, seed + 2)) +
                             inner_product(v, integers(v, seed + 3));
                    return std::vector<at::Tensor>{out, q, k, v};
                  },
              .backward =
                  [&, seed](const at::Tensor& dout, const std::vector<at::Tensor>& kept, const auto&, const auto&) {
                    const std::lock_guard lock(mutex);
                    out_back += inner_product(dout, kept[0]);
                    return AttentionGradients{integers(kept[1], seed + 1), integers(kept[2], seed + 2),
                                              integers(kept[3], seed + 3)};
                  }};
        },
        [&](const Moved& m, const AttentionCore& core, const Microbatch& batch, const AttentionShape& shape) {
          const auto seed = static_cast<uint32_t>(1000 + 10 * (m.u + c.ulysses * m.r));
          const auto tokens = static_cast<int64_t>(m.held.size());
          const at::Tensor q = integers(at::empty({1, c.heads, tokens, kLanes}), seed);
          const at::Tensor k = integers(at::empty({1, c.key_heads, tokens, kLanes}), seed + 1),
                           v = integers(k, seed + 2);
          const at::Tensor dout = integers(q, seed + 3);
          const auto kept = core.forward(q, k, v, batch, shape);
          const AttentionGradients g = core.backward(dout, kept, batch, shape);
          const std::lock_guard lock(mutex);
          out_there += inner_product(kept[0], dout);
          back += inner_product(q, g.dq_BHTD) + inner_product(k, g.dk_BKSD) + inner_product(v, g.dv_BKSD);
        });
    EXPECT_EQ(there, back) << name_of(c);
    EXPECT_EQ(out_there, out_back) << name_of(c);
    EXPECT_NE(there, 0);
  }
}

// If two ranks read a key head, its gradient is the sum of both contributions, not their mean and not one of them.
TEST(AllToAll, GradientsOfASharedKeyHeadAreSummed) {
  const AttentionCase c = cases().back();
  on_all(
      c,
      [](const Moved& m) {
        return AttentionCore{
            .forward = [](const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const auto&,
                          const auto&) { return std::vector<at::Tensor>{q, k, v}; },
            .backward =
                [u = m.u](const at::Tensor& dout, const std::vector<at::Tensor>& kept, const auto&, const auto&) {
                  return AttentionGradients{dout, at::full_like(kept[1], u + 1), at::full_like(kept[2], -u)};
                }};
      },
      [&](const Moved& m, const AttentionCore& core, const Microbatch& batch, const AttentionShape& shape) {
        const auto tokens = static_cast<int64_t>(m.held.size());
        const at::Tensor q = at::zeros({1, c.heads, tokens, kLanes}, at::kDouble);
        const at::Tensor k = at::zeros({1, c.key_heads, tokens, kLanes}, at::kDouble);
        const AttentionGradients g = core.backward(q, core.forward(q, k, k, batch, shape), batch, shape);
        const at::Tensor head = at::arange(c.key_heads).to(at::kDouble).view({1, -1, 1, 1}).expand_as(k);
        EXPECT_TRUE(g.dk_BKSD.equal(4 * head + 3));
        EXPECT_TRUE(g.dv_BKSD.equal(-4 * head - 1));
      });
}

}  // namespace
}  // namespace orthant::all_to_all_test
