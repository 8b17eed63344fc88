// The planned memory of a layer's attention equals the memory that a rank's core holds: the bytes kept from forward to
// backward exactly, and the peak of temporary memory within 5 %.
#include "parallel/sequence/plan.h"
#include "tests/parallel/sequence/core_on_ranks.h"
#include "tests/support/product_scratch.h"
#include "tests/support/sweep.h"

namespace orthant::planned_memory_test {
namespace {

struct Form {
  SequencePlan plan;
  MakeCore make;
};

struct Bytes {
  int64_t kept = 0, working = 0;
};

template <int window>
AttentionCore in_windows(Comm& comm, const AttentionCase& c) {
  return ring_attention(comm, kOverRing, {.placement = c.placement, .window = window});
}

// Memory of this rank: `kept` are the bytes that forward adds to its own q, k and v, and `working` is the peak in
// backward beyond the kept tensors and the output's gradient.
Bytes measure(Comm& comm, const AttentionCore& core, const AttentionCase& c, const AttentionInputs& in) {
  const auto positions =
      held_positions(c.placement, c.length, c.ulysses, comm.position(kOverUlysses), c.ring, comm.position(kOverRing));
  const at::Tensor index = at::tensor(positions, at::kLong);
  const auto part = [&](const at::Tensor& t) { return t.index_select(2, index); };
  const at::Tensor q = part(in.q), k = part(in.k), v = part(in.v);
  const at::Tensor dout =
      part(in.dout).transpose(1, 2).contiguous().transpose(1, 2);  // strides of [B, T, H, D], as in a model
  const Microbatch batch = batch_of(c, index);
  const AttentionShape shape = shape_of(c);
  core.backward(dout, core.forward(q, k, v, batch, shape), batch, shape);  // warm-up: allocates what persists
  const int64_t before = ThreadMemory::now();
  const auto kept = core.forward(q, k, v, batch, shape);
  const int64_t after = ThreadMemory::now();
  ThreadMemory::reset();
  core.backward(dout, kept, batch, shape);
  return {after - before, ThreadMemory::peak() - after};
}

constexpr auto kTwoRings = SequenceMethod::ring_self_attention;
const Form kForms[] = {{{.ring = 2}, usp},
                       {{.ring = 3}, usp},
                       {{.ring = 4}, usp},
                       {{.ring = 4, .window = 2}, in_windows<2>},
                       {{.ring = 8, .window = 4}, in_windows<4>},
                       {{.ring = 12, .window = 3}, in_windows<3>},
                       {{.ulysses = 2}, usp},
                       {{.ulysses = 4}, usp},
                       {{.ulysses = 2, .ring = 2}, usp},
                       {{.ring = 2, .method = kTwoRings}, two_rings},
                       {{.ring = 4, .method = kTwoRings}, two_rings},
                       {{.ring = 2, .method = kTwoRings, .all_reduce = true}, two_rings_as_published},
                       {{.ring = 4, .method = kTwoRings, .all_reduce = true}, two_rings_as_published}};

// Scratch memory, in bytes, of the products of ATen's flash kernel on a tile of queries and a tile of keys.
double scratch_of_tiles(at::ScalarType type, int64_t head_dim) {
  if (type != at::kBFloat16 || has_amx()) return 0;
  return static_cast<double>(std::max({product_scratch(256, 512, head_dim), product_scratch(256, head_dim, 512),
                                       product_scratch(512, head_dim, 256)}));
}

SWEEP_TEST(PlannedSequenceMemory, IsWhatACoreHolds) {
  ThreadMemory::install();
  for (Form form : sweep.of(kForms, 4)) {
    for (const int64_t key_heads : {8, 2}) {
      for (const auto type : {at::kFloat, at::kBFloat16}) {
        form.plan.placement = form.plan.ring == 1 ? SequencePlacement::contiguous : SequencePlacement::zigzag;
        const AttentionCase c{.ulysses = form.plan.ulysses,
                              .ring = form.plan.ring,
                              .placement = form.plan.placement,
                              .sequences = 2,
                              .length = 1024,
                              .heads = 8,
                              .key_heads = key_heads,
                              .head_dim = 64,
                              .dtype = type};
        const AttentionInputs in = inputs_of(c);
        const SequenceAttention attention{.sequences = 2,
                                          .seq_len = 1024,
                                          .heads = 8,
                                          .key_heads = key_heads,
                                          .head_dim = 64,
                                          .element_bytes = static_cast<int>(c10::elementSize(type))};
        const int64_t element = attention.element_bytes;
        std::mutex mutex;
        const double scratch = scratch_of_tiles(type, c.head_dim);
        double most = 0, planned_most = 0, slack = 0;
        run_ranks(c.ulysses * c.ring, [&](Rendezvous rendezvous, int rank) {
          Comm comm(c.mesh(), rank, rendezvous, {});
          const Bytes have = measure(comm, form.make(comm, c), c, in);
          const int u = comm.position(kOverUlysses), r = comm.position(kOverRing);
          const auto planned = sequence_memory(form.plan, attention, u, r);
          const auto held = held_positions(c.placement, c.length, c.ulysses, u, c.ring, r);
          const int64_t tokens = c.sequences * static_cast<int64_t>(held.size()) * c.head_dim;
          const int64_t q = tokens * c.heads * element, kv = tokens * key_heads * element;
          EXPECT_EQ(have.kept + (c.ulysses == 1 ? q + 2 * kv : 0), planned.saved_bytes) << name_of(c);
          const std::lock_guard lock(mutex);
          most = std::max(most, static_cast<double>(have.working));
          // temporary_bytes excludes the memory that backward needs on one device: 3 q + 4 kv.
          planned_most = std::max(planned_most, static_cast<double>(planned.temporary_bytes + 3 * q + 4 * kv));
          // The peak may be lower by a sent sum of dK and dV: it is freed at once if the next rank already waits for
          // it. If the method has no temporary memory of its own, there is no lower bound.
          slack = planned.temporary_bytes == 0 ? planned_most : 2.0 * static_cast<double>(kv) * (element == 2 ? 2 : 1);
        });
        const std::string name = fmt::format("{}, rows {} {}, {} bytes an element", name_of(c),
                                             form.plan.method == kTwoRings, form.plan.all_reduce, element);
        EXPECT_LT(most, 1.05 * planned_most + scratch) << name;
        EXPECT_GT(most, 0.95 * (planned_most - slack)) << name;
      }
    }
  }
}

}  // namespace
}  // namespace orthant::planned_memory_test
