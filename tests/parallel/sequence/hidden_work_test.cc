// Blocks that no query sees are not computed. The multiplications and the (query, key) pairs of kernels, counted
// through libtorch's observer during forward and backward, equal formulas.
#include <ATen/record_function.h>

#include "tests/parallel/sequence/core_on_ranks.h"

namespace orthant::hidden_work_test {
namespace {

// Counts of this thread: n a b c multiplications for each batched product [n, a, b] [n, b, c], and the (query, key)
// pairs passed to flash attention.
thread_local int64_t multiplications = 0, kernel_pairs = 0;

std::unique_ptr<at::ObserverContext> count(const at::RecordFunction& call) {
  const auto sizes = [&](size_t i) { return call.inputs()[i].toTensor().sizes(); };
  const std::string name = call.name();
  if (name == "aten::bmm") multiplications += sizes(0)[0] * sizes(0)[1] * sizes(0)[2] * sizes(1)[2];
  const bool forward = name == "aten::_scaled_dot_product_flash_attention_for_cpu";
  if (forward || name == "aten::_scaled_dot_product_flash_attention_for_cpu_backward") {
    const auto q = sizes(forward ? 0 : 1), k = sizes(forward ? 1 : 2);
    kernel_pairs += q[0] * q[1] * q[2] * k[2];
  }
  return nullptr;
}

struct Work {
  int64_t multiplications = 0, kernel_pairs = 0;
};

std::vector<Work> work_of_ranks(const AttentionCase& c, const MakeCore& make) {
  std::vector<Work> all(static_cast<size_t>(c.ring));
  const auto in = inputs_of(c);
  const auto result = core_on_ranks(
      c, in,
      [&](Comm& comm, const AttentionCase& of) {
        at::addThreadLocalCallback(
            at::RecordFunctionCallback(count).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
        multiplications = kernel_pairs = 0;
        return make(comm, of);
      },
      [&](Comm& comm, const auto&, const auto&, const auto&) {
        all[static_cast<size_t>(comm.rank())] = {multiplications, kernel_pairs};
        at::clearThreadLocalCallbacks();
      });
  const auto want = dense(c, in);
  for (size_t i : {0, 2, 3, 4}) EXPECT_LT(relative_error(result[i], want[i]), 1e-12) << kCoreResults[i];
  return all;
}

// Number of (query, key) pairs that rank r computes for one head. It computes all pairs of its own block, of which a
// mask hides the upper triangle, and only the visible pairs of other blocks.
int64_t pairs(const AttentionCase& c, int r) {
  const int64_t n = c.length / c.ring;
  if (!c.rule.causal) return n * c.length;
  return c.placement == SequencePlacement::zigzag ? n * n + (c.ring - 1) * n * n / 2 : n * n * (r + 1);
}

// Ring Self-Attention, section 1.5: a rank passes on a block that comes later in the sequence, and computes none of its
// six products (two in forward, four in backward).
TEST(HiddenWork, HiddenBlocksAreNotComputed) {
  for (const auto placement : {SequencePlacement::contiguous, SequencePlacement::zigzag}) {
    for (const bool causal : {true, false}) {
      AttentionCase c{.ring = 4, .placement = placement, .length = 256, .key_heads = 2};
      c.rule.causal = causal;
      const int64_t heads = c.sequences * c.heads;
      for (const MakeCore& make : {MakeCore(two_rings), MakeCore(two_rings_as_published)}) {
        const auto work = work_of_ranks(c, make);
        for (int r = 0; r < c.ring; ++r) {
          EXPECT_EQ(work[static_cast<size_t>(r)].multiplications, 6 * heads * c.head_dim * pairs(c, r))
              << name_of(c) << r;
        }
      }
      const auto work = work_of_ranks(c, usp);
      for (int r = 0; r < c.ring; ++r)
        EXPECT_EQ(work[static_cast<size_t>(r)].kernel_pairs, 2 * heads * pairs(c, r)) << name_of(c) << r;
    }
  }
}

}  // namespace
}  // namespace orthant::hidden_work_test
