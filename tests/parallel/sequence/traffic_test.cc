// The planned bytes of sequence parallelism equal the published table for a real model, and the bytes that running
// ranks count.
#include "mesh/collective.h"
#include "parallel/sequence/plan.h"
#include "parallel/sequence/ring.h"
#include "tests/parallel/sequence/core_on_ranks.h"

namespace orthant::traffic_test {
namespace {

int64_t bytes_of(const std::vector<Messages>& all, const std::string& axis, const std::string& what = "") {
  int64_t sum = 0;
  for (const auto& m : all) {
    if (m.axis == axis && m.what.find(what) != std::string::npos) sum += m.bytes.sent;
  }
  return sum;
}

// Unified Sequence Parallelism, check 9: the table of section 4.3 for the heads of LLaMA3-8B, 65,536 tokens, bfloat16
// and eight ranks. Our sums of dK and dV take R-1 messages to return instead of R, so the last column is scaled by
// (R-1)/R.
TEST(SequenceTraffic, OfLlama3IsTheReferenceTable) {
  struct Row {
    int ulysses, ring;
    int64_t all_to_all, blocks, sums_float32;  // bytes: each way; K and V; dK and dV in R messages
  };
  const Row rows[] = {{8, 1, 146'800'640, 0, 0},
                      {4, 2, 125'829'120, 33'554'432, 134'217'728},
                      {2, 4, 83'886'080, 100'663'296, 268'435'456},
                      {1, 8, 0, 234'881'024, 536'870'912}};
  const SequenceAttention llama{
      .sequences = 1, .seq_len = 65536, .heads = 32, .key_heads = 8, .head_dim = 128, .element_bytes = 2};
  for (const Row& row : rows) {
    const SequencePlan plan{.ulysses = row.ulysses, .ring = row.ring};
    for (int r = 0; r < row.ring; ++r) {
      for (int u = 0; u < row.ulysses; ++u) {
        const auto t = sequence_traffic(plan, llama, u, r);
        EXPECT_EQ(bytes_of(t.forward, "ulysses"), row.all_to_all);
        EXPECT_EQ(bytes_of(t.backward, "ulysses"), row.all_to_all);
        EXPECT_EQ(bytes_of(t.forward, "ring"), row.blocks);
        EXPECT_EQ(bytes_of(t.backward, "ring", "values"), row.blocks);
        EXPECT_EQ(bytes_of(t.backward, "ring", "gradients"), row.sums_float32 * (row.ring - 1) / row.ring);
      }
    }
  }
}

struct Form {
  SequencePlan plan;
  MakeCore make;
};

// The same formulas equal the counters of running ranks, for uneven shards of tokens.
TEST(SequenceTraffic, IsWhatRanksCount) {
  const MakeCore windows = [](Comm& comm, const AttentionCase& c) {
    return ring_attention(comm, kOverRing, {.placement = c.placement, .window = 2});
  };
  constexpr auto kTwoRings = SequenceMethod::ring_self_attention;
  const Form forms[] = {{{.ulysses = 4, .ring = 2}, usp},
                        {{.ulysses = 2, .ring = 4}, usp},
                        {{.ulysses = 1, .ring = 8}, usp},
                        {{.ulysses = 8, .ring = 1}, usp},
                        {{.ulysses = 3, .ring = 2}, usp},
                        {{.ring = 6, .window = 2}, windows},
                        {{.ring = 4, .method = kTwoRings}, two_rings},
                        {{.ulysses = 2, .ring = 3, .method = kTwoRings}, two_rings},
                        {{.ring = 4, .method = kTwoRings, .all_reduce = true}, two_rings_as_published}};
  for (Form form : forms) {
    for (const auto placement : kPlacements) {
      for (const auto type : {at::kBFloat16, at::kFloat, at::kDouble}) {
        form.plan.placement = placement;
        AttentionCase c{.ulysses = form.plan.ulysses,
                        .ring = form.plan.ring,
                        .placement = placement,
                        .sequences = 3,
                        .length = 67,
                        .heads = 16,
                        .key_heads = 4,
                        .head_dim = 8,
                        .dtype = type};
        const SequenceAttention attention{.sequences = 3,
                                          .seq_len = 67,
                                          .heads = 16,
                                          .key_heads = 4,
                                          .head_dim = 8,
                                          .element_bytes = static_cast<int>(c10::elementSize(type))};
        core_on_ranks(c, inputs_of(c), form.make, [&](Comm& comm, const auto&, const auto&, const auto&) {
          const auto t = sequence_traffic(form.plan, attention, comm.position(kOverUlysses), comm.position(kOverRing));
          TrafficTable planned;
          for (const auto* pass : {&t.forward, &t.backward}) {
            for (const auto& m : *pass) {
              auto& entry = planned[{m.axis, m.collective}];
              entry.calls += m.calls, entry.bytes += m.bytes;
            }
          }
          const TrafficTable counted = comm.traffic();
          EXPECT_EQ(counted.size(), planned.size());
          for (const auto& [key, traffic] : planned) {
            const auto it = counted.find(key);
            const Traffic have = it == counted.end() ? Traffic{} : it->second;
            EXPECT_EQ(have.bytes, traffic.bytes) << key.second << ", " << name_of(c) << ", rank " << comm.rank();
            EXPECT_EQ(have.calls, traffic.calls) << key.second << ", " << name_of(c) << ", rank " << comm.rank();
          }
        });
      }
    }
  }
}

// Check 8: documents that start at 0, 7 and 14 in 16 tokens, on eight ranks. The published design all-gathers keys and
// values; a ring sends the same bytes. packing_test.cc compares the results, and visibility_test.cc the visible keys.
TEST(SequenceTraffic, OfPackedDocumentsIsThatOfGatheringKeysAndValues) {
  for (const int64_t length : {16, 19}) {
    const AttentionCase c{.ring = 8,
                          .placement = SequencePlacement::contiguous,
                          .sequences = 1,
                          .length = length,
                          .packing = packing({{0, 7, 14}})};
    const Mesh mesh = c.mesh();
    const Layout parts{.split = {{}, {"ring"}, {}}, .partial = {}, .replicated = {}};
    const Collective gather{
        .kind = CollectiveKind::all_gather, .axis = "ring", .from_dim = 1, .after = unsharded_layout(3)};
    const Collective scatter{.kind = CollectiveKind::reduce_scatter, .axis = "ring", .to_dim = 1, .after = parts};
    Layout sums = unsharded_layout(3);
    sums.partial = {"ring"};
    const int64_t keys[] = {c.key_heads, length, c.head_dim};
    core_on_ranks(c, inputs_of(c), usp, [&](Comm& comm, const auto&, const auto&, const auto&) {
      // All-gathers of keys and values in forward and backward, and reduce-scatters of their gradients.
      const int64_t gathered = 4 * bytes_sent(mesh, gather, parts, keys, 8, comm.rank()) +
                               2 * bytes_sent(mesh, scatter, sums, keys, 8, comm.rank());
      EXPECT_EQ(comm.total_traffic().bytes.sent, gathered) << length << " tokens, rank " << comm.rank();
      if (length % 8 == 0) {
        EXPECT_EQ(gathered, 6 * 7 * (length / 8) * c.key_heads * c.head_dim * 8);
      }
    });
  }
}

// The end of check 9: in a double ring with W windows, each rank sends W-1 blocks out of its window, for any number of
// ranks in a window.
TEST(SequenceTraffic, DoubleRingSendsOncePerOtherWindow) {
  for (const auto& [ring, window] : {std::pair{8, 4}, {8, 2}, {12, 3}}) {
    const int windows = ring / window;
    run_ranks(ring, [&, size = ring, inside = window](Rendezvous rendezvous, int rank) {
      Comm comm(Mesh({{"ring", size}}), rank, rendezvous, {});
      const DoubleRing rings = double_ring(size, rank, inside);
      for (const int member : rings.inner.members) EXPECT_EQ(member / inside, rank / inside);
      for (const int member : rings.outer.members) EXPECT_EQ(member % inside, rank % inside);
      const AllocateBlock buffer = [](int) { return at::empty({5}, at::kDouble); };
      visit_blocks({comm, kOverRing, 2}, rings.outer, at::full({5}, rank, at::kDouble), buffer,
                   [&](int source, const at::Tensor& block) {
                     EXPECT_EQ(block[0].item<double>(), source * inside + rank % inside);
                   });
      EXPECT_EQ(comm.total_traffic().bytes.sent, (windows - 1) * 5 * 8);
    });
  }
}

}  // namespace
}  // namespace orthant::traffic_test
