// The growth of one rank's attention memory with the sequence length and the ring size (Ring Self-Attention, check 11).
// Ring self-attention keeps rows of scores and serves as the control for ring attention, which keeps none.
#include "tests/parallel/sequence/core_on_ranks.h"
#include "tests/support/thread_memory.h"

namespace orthant::memory_law_test {
namespace {

struct Bytes {
  int64_t kept = 0, peak = 0;  // bytes beyond q, k, v and the output's gradient
};

// The bytes of one layer's attention on the rank that holds most.
Bytes attention_bytes(const MakeCore& make, int ring, int64_t length) {
  ThreadMemory::install();
  AttentionCase c{.ring = ring,
                  .placement = SequencePlacement::contiguous,
                  .sequences = 2,
                  .length = length,
                  .heads = 2,
                  .key_heads = 2,
                  .head_dim = 8,
                  .dtype = at::kFloat};
  c.rule.causal = false;
  const AttentionInputs in = inputs_of(c);
  Bytes most;
  std::mutex mutex;
  run_ranks(ring, [&](Rendezvous rendezvous, int rank) {
    Comm comm(c.mesh(), rank, rendezvous, {});
    const AttentionCore core = make(comm, c);
    const at::Tensor index = at::tensor(held_positions(c.placement, c.length, 1, 0, ring, rank), at::kLong);
    const auto part = [&](const at::Tensor& t) { return t.index_select(2, index); };
    const at::Tensor q = part(in.q), k = part(in.k), v = part(in.v), dout = part(in.dout);
    const Microbatch batch = batch_of(c, index);
    const AttentionShape shape = shape_of(c);
    const int64_t before = ThreadMemory::now();
    ThreadMemory::reset();
    const auto kept = core.forward(q, k, v, batch, shape);
    const int64_t after_forward = ThreadMemory::now();
    core.backward(dout, kept, batch, shape);
    const std::lock_guard lock(mutex);
    most.kept = std::max(most.kept, after_forward - before);
    most.peak = std::max(most.peak, ThreadMemory::peak() - before);
  });
  return most;
}

constexpr int64_t kScore = 4, kHeads = 2 * 2;  // bytes of a float32 score; sequences x heads

// With twice the ranks at a fixed sequence length, the kept rows of scores halve.
TEST(SequenceMemoryLaw, TwoRingsHalveWithTwiceTheRanksAtOneLength) {
  for (const int ring : {2, 4}) {
    const Bytes few = attention_bytes(two_rings, ring, 2048), many = attention_bytes(two_rings, 2 * ring, 2048);
    EXPECT_NEAR(static_cast<double>(many.kept) / static_cast<double>(few.kept), 0.5, 0.005);
    // The peak also has the scores of one block, which shrink with the square of the block's size: between 1/4 and 1/2.
    EXPECT_LT(static_cast<double>(many.peak) / static_cast<double>(few.peak), 0.51);
    EXPECT_GT(static_cast<double>(many.peak) / static_cast<double>(few.peak), 0.25);
  }
}

// With n tokens on each rank, every further rank adds n x n scores for each head and sequence.
TEST(SequenceMemoryLaw, TwoRingsGrowByARowOfScoresWithEveryRankAtOnePart) {
  constexpr int64_t n = 256;
  std::vector<int64_t> kept;
  for (const int ring : {2, 3, 4, 8}) kept.push_back(attention_bytes(two_rings, ring, ring * n).kept);
  EXPECT_EQ(kept[1] - kept[0], kScore * kHeads * n * n);
  EXPECT_EQ(kept[2] - kept[1], kScore * kHeads * n * n);
  EXPECT_EQ(kept[3] - kept[2], 4 * kScore * kHeads * n * n);
}

// With a fixed number of tokens on each rank, ring attention's memory does not grow with the ring.
TEST(SequenceMemoryLaw, RingAttentionIsConstantPerShard) {
  // The law holds from four ranks on. Only then can a rank have a present block, an arriving block, a departing sum and
  // an arriving sum at the same time.
  const Bytes four = attention_bytes(usp, 4, 4 * 256);
  EXPECT_LT(attention_bytes(usp, 3, 3 * 256).peak, four.peak);
  for (const int ring : {6, 8}) {
    const Bytes more = attention_bytes(usp, ring, ring * 256);
    EXPECT_EQ(more.kept, four.kept);
    EXPECT_NEAR(static_cast<double>(more.peak) / static_cast<double>(four.peak), 1, 0.01) << ring;
  }
  // The control: ring self-attention, which keeps rows of scores, grows.
  EXPECT_GT(attention_bytes(two_rings, 8, 8 * 256).peak, 2 * attention_bytes(two_rings, 2, 2 * 256).peak);
}

}  // namespace
}  // namespace orthant::memory_law_test
