// Rings that run for long, with odd sizes, in parallel and with late ranks: they do not hang, results keep their bits,
// and memory does not grow. Every Comm has a timeout of 30 s, so a hang fails the test.
#include <chrono>
#include <random>
#include <thread>

#include "parallel/sequence/ring.h"
#include "tests/parallel/sequence/core_on_ranks.h"
#include "tests/support/thread_memory.h"

namespace orthant::robustness_test {
namespace {

const CommOptions kImpatient = {.timeout_s = 30};

// Ring Self-Attention, check 13: blocks of 8 bytes to 64 MiB arrive with the right content. The content matters most in
// a ring of two, where both neighbors are the same rank.
TEST(SequenceRobustness, BlocksOfAnySizeGoRound) {
  for (const auto& [ring, elements] : {std::pair{2, 1},
                                       {3, 1},
                                       {5, 1},
                                       {8, 1},
                                       {2, 1 << 10},
                                       {3, 1 << 13},
                                       {5, 1 << 16},
                                       {8, 1 << 17},
                                       {2, 8 << 20},
                                       {3, 8 << 20}}) {
    run_ranks(ring, [&, size = ring, count = elements](Rendezvous rendezvous, int rank) {
      Comm comm(Mesh({{"ring", size}}), rank, rendezvous, kImpatient);
      const DoubleRing rings = double_ring(size, rank, size);
      const AllocateBlock buffer = [&](int) { return at::empty({count}, at::kDouble); };
      // To the sum of block b, rank r adds b (r + 1).
      const at::Tensor sum = sum_over_blocks({comm, kOverRing, 0}, rings.inner, at::full({count}, rank, at::kDouble),
                                             buffer, buffer, [&](int source, const at::Tensor& block) {
                                               EXPECT_TRUE(block.eq(source).all().item<bool>());
                                               return block * (rank + 1);
                                             });
      EXPECT_TRUE(sum.eq(rank * size * (size + 1) / 2).all().item<bool>())
          << size << " ranks, " << count << " elements";
    });
  }
}

// The end of check 13: rings of keys and of values for two microbatches run while activations are sent to the next
// pipeline stage.
TEST(SequenceRobustness, RingsDuringPipelineMessages) {
  constexpr int kRounds = 100;
  for (const int ring : {2, 3}) {
    run_ranks(2 * ring, [&](Rendezvous rendezvous, int rank) {
      Comm comm(Mesh({{"ring", ring}, {"pipeline", 2}}), rank, rendezvous, kImpatient);
      const Axes pipeline = {"pipeline"};
      const int index = comm.position(kOverRing), stage = comm.position(pipeline);
      const Ring members = double_ring(ring, index, ring).inner;
      const AllocateBlock buffer = [](int) { return at::empty({100}, at::kDouble); };
      for (int round = 0; round < kRounds; ++round) {
        std::vector<at::Tensor> boundary;
        std::vector<Work> under_way;
        for (int microbatch = 0; microbatch < 2; ++microbatch) {
          boundary.push_back(at::full({1000}, stage == 0 ? 10 * round + microbatch : NAN, at::kDouble));
          if (stage == 0) under_way.push_back(comm.send(boundary.back(), pipeline, 1, microbatch));
          if (stage == 1) under_way.push_back(comm.recv(boundary.back(), pipeline, 0, microbatch));
          for (const int tag : {0, 2}) {  // keys, values
            const double own = 1000 * round + 100 * microbatch + 10 * stage + tag;
            visit_blocks(
                {comm, kOverRing, tag}, members, at::full({100}, own + ring * index, at::kDouble), buffer,
                [&](int source, const at::Tensor& block) { EXPECT_EQ(block[99].item<double>(), own + ring * source); });
          }
        }
        for (Work& work : under_way) work.wait();
        for (int microbatch = 0; microbatch < 2; ++microbatch)
          EXPECT_EQ(boundary[microbatch][999].item<double>(), 10 * round + microbatch);
      }
    });
  }
}

// Unified Sequence Parallelism, check 11; Ring Self-Attention, check 13: a thousand iterations on two groups in
// parallel, and 200 on single groups. In each, one random rank is late by up to 20 ms. Results keep the bits of the
// first iteration, and memory does not grow.
TEST(LongSequenceRobustness, AThousandTimesWithLateRanks) {
  ThreadMemory::install();
  struct Form {
    int ulysses, ring, data;
    MakeCore make;
  };
  const Form all[] = {{1, 2, 1, usp}, {1, 3, 1, usp}, {1, 5, 1, usp}, {2, 2, 2, usp}, {1, 3, 1, two_rings}};
  for (const Form& form : all) {
    const int ranks = form.ulysses * form.ring * form.data, iterations = form.data == 2 ? 1000 : 200;
    AttentionCase c{
        .ulysses = form.ulysses, .ring = form.ring, .sequences = 1, .length = 30, .heads = 4, .key_heads = 2};
    const AttentionInputs in = inputs_of(c);
    run_ranks(ranks, [&](Rendezvous rendezvous, int rank) {
      Comm comm(Mesh({{"ulysses", form.ulysses}, {"ring", form.ring}, {"data", form.data}}), rank, rendezvous,
                kImpatient);
      const AttentionCore core = form.make(comm, c);
      const auto positions = held_positions(c.placement, c.length, c.ulysses, comm.position(kOverUlysses), c.ring,
                                            comm.position(kOverRing));
      const at::Tensor index = at::tensor(positions, at::kLong);
      const auto part = [&](const at::Tensor& t) { return t.index_select(2, index) + comm.position({"data"}); };
      const at::Tensor q = part(in.q), k = part(in.k), v = part(in.v), dout = part(in.dout);
      const Microbatch batch = batch_of(c, index);
      std::mt19937 random(3);  // the same on all ranks
      std::vector<at::Tensor> first;
      int64_t settled = 0;
      for (int i = 0; i < iterations; ++i) {
        const auto late = static_cast<int>(random() % static_cast<unsigned>(ranks)),
                   us = static_cast<int>(random() % 20000);
        if (late == rank) std::this_thread::sleep_for(std::chrono::microseconds(us));
        const auto kept = core.forward(q, k, v, batch, shape_of(c));
        const AttentionGradients g = core.backward(dout, kept, batch, shape_of(c));
        const std::vector<at::Tensor> now = {kept[0], g.dq_BHTD, g.dk_BKSD, g.dv_BKSD};
        if (i == 0) first = now;
        for (size_t t = 0; t < now.size(); ++t) ASSERT_TRUE(now[t].equal(first[t])) << "iteration " << i;
        if (i == 3) settled = ThreadMemory::peak();
      }
      EXPECT_LT(ThreadMemory::peak() - settled, 1 << 20) << "bytes of tensors that were not given back";
      EXPECT_GT(settled, 0);
    });
  }
}

// Unified Sequence Parallelism, check 13: the order of the two axes in the mesh changes no bit of the results and no
// byte of the traffic. It only changes which ranks are neighbors.
TEST(SequenceRobustness, TheOrderOfTheAxesChangesNoNumber) {
  for (const auto& [u, r] : {std::pair{2, 2}, {2, 3}, {4, 2}}) {
    AttentionCase c{.ulysses = u, .ring = r, .key_heads = 2};
    const auto in = inputs_of(c);
    const auto run = [&](bool ring_inside) {
      c.ring_inside = ring_inside;
      std::map<std::pair<int, int>, TrafficTable> traffic;  // by position, not by rank
      auto result = core_on_ranks(c, in, usp, [&](Comm& comm, const auto&, const auto&, const auto&) {
        traffic[{comm.position(kOverUlysses), comm.position(kOverRing)}] = comm.traffic();
      });
      return std::pair{result, traffic};
    };
    const auto outer = run(false), inner = run(true);
    for (size_t i : {0, 2, 3, 4}) EXPECT_TRUE(outer.first[i].equal(inner.first[i])) << kCoreResults[i];
    EXPECT_TRUE(outer.second == inner.second);
  }
}

}  // namespace
}  // namespace orthant::robustness_test
