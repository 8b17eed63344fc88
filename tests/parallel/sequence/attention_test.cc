// Every core of sequence parallelism equals attention on one device within 1e-12 in float64, and sends the bytes of its
// formulas. The controls are typical errors of implementations, which must exceed 1e-3.
#include "parallel/sequence/ulysses/heads_plan.h"
#include "tests/parallel/sequence/sharded_attention.h"
#include "tests/support/sweep.h"

namespace orthant::attention_test {
namespace {

void expect_equal(const AttentionCase& c, const MakeCore& make, double bound = 1e-12) {
  const AttentionResult want = on_one_device(c), have = on_ranks(c, make);
  EXPECT_LT(relative_error(have.out, want.out), bound) << name_of(c);
  EXPECT_LT(relative_error(have.dqkv, want.dqkv), bound) << name_of(c);
}

SWEEP_TEST(SequenceParallel, EveryUlyssesAndRingEqualsOneDevice) {
  const std::pair<int, int> meshes[] = {{1, 1}, {1, 3}, {1, 2}, {2, 1}, {1, 4}, {3, 1}, {2, 2}, {4, 1}, {1, 5},
                                        {5, 1}, {2, 3}, {6, 1}, {3, 2}, {2, 4}, {1, 8}, {4, 2}, {8, 1}};
  for (const auto& [u, r] : sweep.of(meshes, 9)) {
    for (const SequencePlacement placement : kPlacements) {
      for (const bool causal : {true, false}) {
        AttentionCase c{.ulysses = u, .ring = r, .placement = placement, .heads = 8, .key_heads = 4};
        c.rule.causal = causal;
        expect_equal(c, usp);
      }
    }
  }
}

SWEEP_TEST(SequenceParallel, AnyLengthAnyHeads) {
  for (const int64_t length : sweep.of(std::vector{50, 13, 7}, 1)) {
    for (const auto& [heads, key_heads] : {std::pair{8, 8}, {8, 2}, {8, 1}, {7, 7}, {12, 3}, {9, 3}}) {
      for (const auto& [u, r] : {std::pair{3, 1}, {4, 1}, {3, 2}, {7, 1}, {1, 3}}) {
        expect_equal({.ulysses = u, .ring = r, .length = length, .heads = heads, .key_heads = key_heads}, usp);
      }
    }
  }
}

SWEEP_TEST(SequenceParallel, DocumentsWindowsAndPadding) {
  const auto documents = packing({{0, 7, 14, 40}, {0, 1, 33}});
  const auto padded = packing({{0, 20}, {0}}, {64, 17});
  const auto nothing = packing({}, {0, 64});
  for (const SequencePlacement placement : kPlacements) {
    for (const auto& [u, r] : sweep.of(std::vector{std::pair{1, 4}, {2, 2}, {4, 1}, {2, 3}}, 2)) {
      for (const bool causal : {true, false}) {
        for (const auto& pack : {documents, padded, nothing}) {
          for (const int64_t window : {0, 9}) {
            AttentionCase c{.ulysses = u, .ring = r, .placement = placement, .key_heads = 2, .packing = pack};
            c.rule = {.causal = causal, .sliding_window = window};
            expect_equal(c, usp);
            if (u == 1) expect_equal(c, two_rings);
          }
        }
      }
    }
  }
}

SWEEP_TEST(SequenceParallel, RingSelfAttentionEqualsOneDevice) {
  for (const int ring : sweep.of(std::vector{1, 2, 3, 4, 8, 16, 5}, 4)) {
    for (const SequencePlacement placement : {SequencePlacement::contiguous, SequencePlacement::zigzag}) {
      for (const bool causal : {true, false}) {
        AttentionCase c{.ring = ring, .placement = placement, .length = 32, .heads = 6, .key_heads = 3};
        c.rule.causal = causal;
        expect_equal(c, two_rings);
        expect_equal(c, two_rings_as_published);
      }
    }
  }
}

TEST(SequenceParallel, DoubleRings) {
  for (const auto& [ring, window] : {std::pair{8, 4}, {8, 2}, {4, 2}, {6, 3}, {6, 2}}) {
    for (const SequencePlacement placement : kPlacements) {
      const int inner = window;
      expect_equal({.ring = ring, .placement = placement}, [=](Comm& comm, const AttentionCase& c) {
        return ring_attention(comm, kOverRing, {.placement = c.placement, .window = inner});
      });
    }
  }
}

// One core applies the visibility rule of each call, although it caches the visibility of a batch: a cached rule is not
// used for another rule of the same batch.
TEST(SequenceParallel, OneCoreFollowsEveryRule) {
  const VisibilityRule rules[] = {{}, {.sliding_window = 5}, {.causal = false}, {.causal = false, .sliding_window = 5}};
  for (const MakeCore& make : {MakeCore(usp), MakeCore(two_rings)}) {
    for (const auto& documents : {packing({}), packing({{0, 30}, {0, 7}})}) {
      AttentionCase c{.ring = 2, .packing = documents};
      std::vector<AttentionResult> want;
      for (const auto& rule : rules) c.rule = rule, want.push_back(on_one_device(c));
      run_ranks(2, [&](Rendezvous rendezvous, int rank) {
        AttentionCase mine = c;
        Comm comm(mine.mesh(), rank, rendezvous, {});
        const AttentionCore core = make(comm, mine);
        const auto positions = held_positions(mine.placement, mine.length, 1, 0, mine.ring, rank);
        const at::Tensor index = at::tensor(positions, at::kLong);
        for (size_t i = 0; i < std::size(rules); ++i) {
          mine.rule = rules[i];
          const AttentionResult have = attend_at(core, mine, positions);
          EXPECT_LT(relative_error(have.out, want[i].out.index_select(1, index)), 1e-12) << name_of(mine);
          EXPECT_LT(relative_error(have.dqkv, want[i].dqkv.index_select(1, index)), 1e-12) << name_of(mine);
        }
      });
    }
  }
}

// Expects every rank to send this number of bytes on the axis, in forward and backward together.
void expect_bytes(AttentionCase c, const MakeCore& make, const std::string& axis, int64_t expected) {
  on_ranks(c, make, [&](Comm& comm, const AttentionResult&) {
    int64_t bytes = 0;
    for (const auto& [key, traffic] : comm.traffic()) {
      if (key.first == axis) bytes += traffic.bytes.sent;
    }
    EXPECT_EQ(bytes, expected) << name_of(c) << ", rank " << comm.rank();
  });
}

// Ring Self-Attention, check 3: on four ranks, forward sends 576 elements. Backward sends 1,728 in the published form
// and 1,152 in the cheaper form.
TEST(SequenceParallel, RingsSendWhatTheFormulasSay) {
  AttentionCase c{.placement = SequencePlacement::contiguous,
                  .sequences = 2,
                  .length = 16,
                  .heads = 3,
                  .key_heads = 3,
                  .head_dim = 4};
  const MakeCore online = [](Comm& comm, const AttentionCase& of) {
    return ring_attention(comm, kOverRing, {.placement = of.placement});
  };
  for (const auto& [ring, forward, paper, cheaper] :
       {std::tuple{2, 384, 1152, 768}, {4, 576, 1728, 1152}, {8, 672, 2016, 1344}}) {
    c.ring = ring;
    expect_bytes(c, two_rings_as_published, "ring", 8 * (forward + paper));
    expect_bytes(c, two_rings, "ring", 8 * (forward + cheaper));
    expect_bytes(c, online, "ring", 8 * (forward + cheaper));
  }
  c.ring = 1;
  expect_bytes(c, two_rings, "ring", 0);
}

// Unified Sequence Parallelism, section 4.3: the all-to-alls send q, k, v and the output in forward, and the same bytes
// in backward. K and V travel round the ring of the remaining ranks.
TEST(SequenceParallel, UspSendsWhatTheFormulasSay) {
  for (const auto& [u, r] : {std::pair{8, 1}, {4, 2}, {2, 4}, {1, 8}}) {
    AttentionCase c{.ulysses = u, .ring = r, .sequences = 1, .length = 64, .heads = 32, .key_heads = 8, .head_dim = 8};
    const int64_t d = c.heads * c.head_dim, d_kv = c.key_heads * c.head_dim, N = u * r;
    expect_bytes(c, usp, "ulysses", 8 * 4 * (u - 1) * c.length * (d + d_kv) / (u * N));
    // In float64, an element of the sums dK and dV has as many bytes as one of K and V. Keys and values in forward and
    // in backward, and the sums, take r-1 messages each.
    expect_bytes(c, usp, "ring", 8 * 3 * 2 * (r - 1) * c.length * d_kv / N);
  }
}

// Numbers of query and key heads of each Ulysses rank. The last line: 16 ranks read 8 key heads, two ranks each.
TEST(SequenceParallel, HeadsOfEachRank) {
  const auto sizes = [](int64_t heads, int64_t key_heads, int ranks) {
    std::vector<std::pair<int64_t, int64_t>> all;
    for (int u = 0; u < ranks; ++u) {
      const HeadShard share = head_shard(heads, key_heads, ranks, u);
      all.emplace_back(share.query.size(), share.key.size());
    }
    return all;
  };
  using Sizes = std::vector<std::pair<int64_t, int64_t>>;
  EXPECT_EQ(sizes(32, 8, 8), Sizes(8, {4, 1}));
  EXPECT_EQ(sizes(32, 8, 16), Sizes(16, {2, 1}));
  EXPECT_EQ(sizes(28, 4, 4), Sizes(4, {7, 1}));
  EXPECT_EQ(sizes(7, 7, 4), (Sizes{{2, 2}, {2, 2}, {2, 2}, {1, 1}}));
  for (int u = 0; u < 16; ++u) EXPECT_EQ(head_shard(32, 8, 16, u).key.begin, u / 2);
}

// The controls: each of these typical errors must be far outside the bound.
TEST(SequenceParallel, DetectsErrors) {
  constexpr double kFar = 1e-3;
  const AttentionCase c{.ulysses = 1, .ring = 4, .placement = SequencePlacement::contiguous};
  const AttentionResult want = on_one_device(c);
  // The ranks hold contiguous tokens, but the ring assumes zigzag.
  const auto zigzag = on_ranks(c, [](Comm& comm, const AttentionCase&) {
    return ring_attention(comm, kOverRing, {.placement = SequencePlacement::zigzag});
  });
  EXPECT_GT(relative_error(zigzag.out, want.out), kFar);
  // Rotary positions start at 0 on every rank.
  const auto local = on_ranks(c, usp, {}, [](const at::Tensor& positions) { return at::arange(positions.numel()); });
  EXPECT_GT(relative_error(local.out, want.out), kFar);
  // Backward uses wrong keys, shifted by one token, instead of the kept ones; forward is right.
  const MakeCore stale = [](Comm& comm, const AttentionCase& of) {
    AttentionCore core = ring_attention(comm, kOverRing, {.placement = of.placement});
    core.backward = [backward = core.backward](const at::Tensor& dout, std::vector<at::Tensor> kept, const auto& batch,
                                               const auto& shape) {
      kept[2] = kept[2].roll(1, 2);
      return backward(dout, kept, batch, shape);
    };
    return core;
  };
  const auto stale_keys = on_ranks(c, stale);
  EXPECT_LT(relative_error(stale_keys.out, want.out), 1e-12);
  EXPECT_GT(relative_error(stale_keys.dqkv, want.dqkv), kFar);
  // dQ and dK are divided by the number of ranks.
  const auto divided = on_ranks(c, [](Comm& comm, const AttentionCase& of) {
    AttentionCore core = ring_attention(comm, kOverRing, {.placement = of.placement});
    core.backward = [backward = core.backward](const auto& dout, const auto& kept, const auto& batch,
                                               const auto& shape) {
      AttentionGradients g = backward(dout, kept, batch, shape);
      return AttentionGradients{g.dq_BHTD / 4, g.dk_BKSD / 4, g.dv_BKSD};
    };
    return core;
  });
  EXPECT_GT(relative_error(divided.dqkv, want.dqkv), kFar);
}

}  // namespace
}  // namespace orthant::attention_test
