// Documents and padding over rings: packed documents equal each document alone on one device, and padding has no
// effect. No tensor of B L L bytes, the size of a full mask, is ever allocated. The controls move a border of the
// documents and build the full mask.
#include "tests/parallel/sequence/core_on_ranks.h"
#include "tests/support/thread_memory.h"

namespace orthant::packing_test {
namespace {

// The oracle: each document is a sequence of its own, on one device, by the definition of attention.
CoreResult attend_by_document(const AttentionCase& c, const AttentionInputs& in, const std::vector<int64_t>& starts) {
  CoreResult all{at::zeros_like(in.q), at::zeros({c.sequences, c.heads, c.length}, at::kDouble), at::zeros_like(in.q),
                 at::zeros_like(in.k), at::zeros_like(in.v)};
  for (size_t d = 0; d < starts.size(); ++d) {
    const int64_t begin = starts[d], length = (d + 1 < starts.size() ? starts[d + 1] : c.length) - begin;
    AttentionCase alone = c;
    alone.length = length, alone.packing = nullptr;
    const auto part = [&](const at::Tensor& t) { return t.narrow(2, begin, length); };
    const auto result = dense(alone, {part(in.q), part(in.k), part(in.v), part(in.dout), in.scale, in.softcap});
    for (size_t i = 0; i < all.size(); ++i) part(all[i]).copy_(result[i]);
  }
  return all;
}

void expect_equal(const CoreResult& have, const CoreResult& want, const std::string& name) {
  for (size_t i : {0, 2, 3, 4}) EXPECT_LT(relative_error(have[i], want[i]), 1e-12) << kCoreResults[i] << ", " << name;
}

// Unified Sequence Parallelism, check 8: documents that start at 0, 7 and 14 in 16 tokens, on eight ranks.
TEST(Packing, DocumentsEqualEachAlone) {
  for (const auto placement : kPlacements) {
    for (const auto& [u, r] : {std::pair{1, 8}, {2, 4}, {4, 2}}) {
      for (const bool causal : {true, false}) {
        AttentionCase c{.ulysses = u,
                        .ring = r,
                        .placement = placement,
                        .sequences = 1,
                        .length = 16,
                        .packing = packing({{0, 7, 14}})};
        c.rule.causal = causal;
        const auto in = inputs_of(c);
        const auto want = attend_by_document(c, in, {0, 7, 14});
        expect_equal(core_on_ranks(c, in, usp), want, name_of(c));
        if (u == 1) expect_equal(core_on_ranks(c, in, two_rings), want, name_of(c));
        // The control: with a border moved by one token, the error is large.
        c.packing = packing({{0, 8, 14}});
        EXPECT_GT(relative_error(core_on_ranks(c, in, usp)[0], want[0]), 1e-3);
      }
    }
  }
}

// Documents of 128, 1120 and 2992 tokens on eight ranks. Lengths need not be multiples of any number.
TEST(Packing, LongDocumentsEqualEachAlone) {
  AttentionCase c{.ring = 8,
                  .sequences = 1,
                  .length = 128 + 1120 + 2992,
                  .heads = 1,
                  .key_heads = 1,
                  .head_dim = 4,
                  .packing = packing({{0, 128, 1248}})};
  const auto in = inputs_of(c);
  const auto want = attend_by_document(c, in, {0, 128, 1248});
  expect_equal(core_on_ranks(c, in, usp), want, name_of(c));
  c.placement = SequencePlacement::contiguous;
  expect_equal(core_on_ranks(c, in, two_rings), want, name_of(c));
}

// 698 tokens, padded to 704 on four ranks, give the results of 698 tokens without padding, and zeros for the padding.
TEST(Packing, PaddingHasNoEffect) {
  for (const auto placement : kPlacements) {
    for (const bool causal : {true, false}) {
      AttentionCase c{.ring = 4,
                      .placement = placement,
                      .sequences = 1,
                      .length = 704,
                      .heads = 2,
                      .key_heads = 1,
                      .head_dim = 4,
                      .packing = packing({}, {698})};
      c.rule.causal = causal;
      AttentionInputs in = inputs_of(c);
      for (at::Tensor* t : {&in.q, &in.k, &in.v}) t->narrow(2, 698, 6).fill_(1e3);  // no query may see it
      AttentionCase alone = c;
      alone.length = 698, alone.packing = nullptr;
      const auto part = [](const at::Tensor& t) { return t.narrow(2, 0, 698); };
      const auto want = dense(alone, {part(in.q), part(in.k), part(in.v), part(in.dout), in.scale, in.softcap});
      for (const MakeCore& make : {MakeCore(usp), MakeCore(two_rings)}) {
        const auto have = core_on_ranks(c, in, make);
        for (size_t i : {0, 2, 3, 4}) {
          EXPECT_LT(relative_error(part(have[i]), want[i]), 1e-12) << kCoreResults[i] << ", " << name_of(c);
          EXPECT_TRUE(have[i].narrow(2, 698, 6).eq(0).all().item<bool>()) << kCoreResults[i] << ", " << name_of(c);
        }
      }
    }
  }
}

// Ring Self-Attention, check 7: valid lengths of one token, inside a rank's shard, at its end, one token past it, and
// the full length.
TEST(Packing, ValidLengthsAtEveryBorder) {
  for (const int ring : {1, 2, 4, 8}) {
    for (const int64_t length : {1, 5, 8, 9, 31, 32}) {
      for (const bool causal : {true, false}) {
        AttentionCase c{.ring = ring,
                        .placement = SequencePlacement::contiguous,
                        .length = 32,
                        .packing = packing({}, {length, 32})};
        c.rule.causal = causal;
        const auto in = inputs_of(c);
        const auto want = dense(c, in);
        expect_equal(core_on_ranks(c, in, usp), want, name_of(c));
        expect_equal(core_on_ranks(c, in, two_rings), want, name_of(c));
      }
    }
  }
}

// The end of check 7: each rank's largest tensor, masks included, has fewer than B L L bytes.
TEST(Packing, NoTensorIsAsLargeAsAMaskOfAllPairs) {
  ThreadMemory::install();
  AttentionCase c{.ring = 8,
                  .placement = SequencePlacement::contiguous,
                  .sequences = 2,
                  .length = 1024,
                  .heads = 1,
                  .key_heads = 1,
                  .head_dim = 4,
                  .packing = packing({{0, 100, 700}, {0, 513}}, {1024, 900}),
                  .dtype = at::kFloat};
  const AttentionInputs in = inputs_of(c);
  const int64_t pairs = c.sequences * c.length * c.length;
  for (const MakeCore& make : {MakeCore(usp), MakeCore(two_rings)}) {
    run_ranks(c.ring, [&](Rendezvous rendezvous, int rank) {
      Comm comm(c.mesh(), rank, rendezvous, {});
      const AttentionCore core = make(comm, c);
      const at::Tensor index = at::tensor(held_positions(c.placement, c.length, 1, 0, c.ring, rank), at::kLong);
      const auto part = [&](const at::Tensor& t) { return t.index_select(2, index); };
      ThreadMemory::reset();
      const auto kept = core.forward(part(in.q), part(in.k), part(in.v), batch_of(c, index), shape_of(c));
      core.backward(part(in.dout), kept, batch_of(c, index), shape_of(c));
      EXPECT_LT(ThreadMemory::largest(), pairs);
      EXPECT_GT(ThreadMemory::largest(), 1024) << "nothing was counted";
    });
  }
  // The control: the mask of the dense definition is that large.
  ThreadMemory::reset();
  dense(c, in);
  EXPECT_GE(ThreadMemory::largest(), pairs);
}

}  // namespace
}  // namespace orthant::packing_test
