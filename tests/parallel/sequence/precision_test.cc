// Rounding in sequence parallelism, by the checks of the specifications: the error budget of bfloat16, logits of 1e4,
// queries that see no key, invariants that need no oracle, and the published table.
#include <ATen/CPUGeneratorImpl.h>

#include "tests/parallel/sequence/core_on_ranks.h"

namespace orthant::precision_test {
namespace {

AttentionCore ring_of_windows(Comm& comm, const AttentionCase& c) {
  return ring_attention(comm, kOverRing, {.placement = c.placement, .window = c.ring / 2});
}

struct Form {
  const char* name;
  MakeCore make;
  int ulysses = 1, ring = 4;
};
std::vector<Form> forms() {
  return {{"ring", usp, 1, 4},
          {"ulysses", usp, 4, 1},
          {"usp", usp, 2, 2},
          {"double ring", ring_of_windows, 1, 4},
          {"two rings", two_rings, 1, 4},
          {"two rings, all-reduce", two_rings_as_published, 1, 4}};
}

AttentionInputs normal_inputs(const AttentionCase& c) {
  const at::Generator generator = at::detail::createCPUGenerator(5);
  const auto draw = [&](int64_t heads) {
    return at::randn({c.sequences, heads, c.length, c.head_dim}, generator, at::kDouble).to(c.dtype);
  };
  return {draw(c.heads), draw(c.key_heads), draw(c.key_heads), draw(c.heads),
          1 / std::sqrt(static_cast<double>(c.head_dim))};
}

// The error in bfloat16 stays below the limits of Unified Sequence Parallelism, check 4, and does not grow with the
// ring. Sums in float32 keep these limits; sums in bfloat16 (4.5e-3) and log-sum-exps in bfloat16 (1e-2) exceed them.
TEST(SequencePrecision, Bfloat16StaysWithinItsBudgetWhateverTheRing) {
  AttentionCase c{.sequences = 1, .length = 1024, .heads = 2, .key_heads = 2, .head_dim = 64, .dtype = at::kBFloat16};
  const AttentionInputs in = normal_inputs(c);
  constexpr double kLimits[] = {2.2e-3, 0, 2.8e-3, 2.8e-3, 2.8e-3};
  for (const bool causal : {true, false}) {
    c.rule.causal = causal;
    const auto want = dense(c, in);
    std::array<double, 5> of_two{};
    for (const int ring : {2, 8, 16}) {
      c.ring = ring;
      const auto have = core_on_ranks(c, in, usp);
      EXPECT_LT((have[1] - want[1]).abs().max().item<double>(), 1e-5) << name_of(c);
      for (size_t i : {0, 2, 3, 4}) {
        const double error = relative_error(have[i], want[i]);
        EXPECT_LT(error, kLimits[i]) << kCoreResults[i] << ", " << name_of(c);
        if (ring == 2) of_two[i] = error;
        EXPECT_LT(error, 1.15 * of_two[i]) << kCoreResults[i] << ", " << name_of(c);
        RecordProperty(fmt::format("{}_{}_{}", kCoreResults[i], ring, causal), fmt::format("{:.2e}", error));
      }
    }
  }
  // The control: a log-sum-exp rounded to bfloat16 exceeds the limits.
  c.ring = 16, c.rule.causal = false;
  const auto want = dense(c, in);
  const auto rounded_lse = core_on_ranks(c, in, [](Comm& comm, const AttentionCase& of) {
    AttentionCore core = usp(comm, of);
    core.backward = [backward = core.backward](const auto& dout, std::vector<at::Tensor> kept, const auto& batch,
                                               const auto& shape) {
      kept[4] = kept[4].to(at::kBFloat16).to(at::kFloat);
      return backward(dout, kept, batch, shape);
    };
    return core;
  });
  for (size_t i : {2, 3, 4}) EXPECT_GT(relative_error(rounded_lse[i], want[i]), kLimits[i]) << kCoreResults[i];
}

// Ring self-attention rounds its probabilities once more than ring attention. Two roundings have 1.4 times the error of
// one. It sums in float32, so the error does not grow with the ring.
TEST(SequencePrecision, Bfloat16OfRingSelfAttentionDoesNotDependOnTheRing) {
  AttentionCase c{.sequences = 1, .length = 1024, .heads = 2, .key_heads = 2, .head_dim = 64, .dtype = at::kBFloat16};
  const AttentionInputs in = normal_inputs(c);
  for (const bool causal : {true, false}) {
    c.rule.causal = causal;
    const auto want = dense(c, in);
    std::array<double, 5> of_one{};
    for (const int ring : {1, 8, 16}) {
      c.ring = ring;
      const auto have = core_on_ranks(c, in, two_rings);
      for (size_t i : {0, 2, 3, 4}) {
        const double error = relative_error(have[i], want[i]);
        if (ring == 1) of_one[i] = error;
        EXPECT_LT(error, 2.8e-3) << kCoreResults[i] << ", " << name_of(c);
        EXPECT_LT(error, 1.15 * of_one[i]) << kCoreResults[i] << ", " << name_of(c);
        RecordProperty(fmt::format("{}_{}_{}", kCoreResults[i], ring, causal), fmt::format("{:.2e}", error));
      }
    }
  }
}

// The logits of one key are 1e4 above all others, in the first, a middle or the last block (Unified Sequence
// Parallelism, check 5; Ring Self-Attention, check 8). The output is that key's value.
TEST(SequencePrecision, OneKeyFarAboveAllOthers) {
  for (const Form& form : forms()) {
    for (const auto type : {at::kFloat, at::kDouble}) {
      for (const int64_t large : {0, 9, 31}) {
        AttentionCase c{.ulysses = form.ulysses, .ring = form.ring, .sequences = 1, .length = 32, .dtype = type};
        c.rule.causal = false;
        AttentionInputs in = inputs_of(c);
        in.q.slice(3, 0, 1).fill_(128);  // 128 x 256 / sqrt(8) = 1.16e4
        in.k.slice(3, 0, 1).fill_(0);
        in.k.slice(3, 0, 1).slice(2, large, large + 1).fill_(256);
        const auto want = dense(c, in);
        const auto have = core_on_ranks(c, in, form.make);
        const double bound = type == at::kFloat ? 1e-5 : 1e-12;
        EXPECT_LT(relative_error(have[0], want[0]), bound) << form.name;
        // Backward recomputes the probability exp(score - log-sum-exp). Both numbers come from rounded products and
        // rounded scaled products, and kernels that add in another order round differently: four roundings of 1.16e4.
        const double of_scores = 4 * 1.16e4 * (type == at::kFloat ? 0x1p-24 : 0x1p-53);
        EXPECT_LT(relative_error(have[4], want[4]), bound + of_scores) << form.name;
        // The softmax is saturated, so the gradient of the logits is zero. The rounding errors grow with q and k.
        for (size_t i : {2, 3}) {
          EXPECT_LT(want[i].abs().max().item<double>(), 1e-12);
          EXPECT_LT(have[i].abs().max().item<double>(), 256 * 10 * bound) << form.name << " " << kCoreResults[i];
        }
        const at::Tensor dominant = in.v.narrow(2, large, 1).expand_as(in.q).to(at::kDouble);
        EXPECT_LT(relative_error(have[0], dominant), bound) << form.name;
      }
    }
  }
}

// A query that sees no key has zero output and zero gradient, and no other query is affected (check 5, second half;
// Ring Self-Attention, check 7).
TEST(SequencePrecision, AQueryThatSeesNothingHasNothing) {
  for (const Form& form : forms()) {
    for (const auto type : {at::kBFloat16, at::kFloat, at::kDouble}) {
      AttentionCase c{
          .ulysses = form.ulysses, .ring = form.ring, .length = 32, .packing = packing({}, {0, 11}), .dtype = type};
      const AttentionInputs in = inputs_of(c);
      const auto have = core_on_ranks(c, in, form.make);
      for (size_t i : {0, 2, 3, 4}) {
        EXPECT_TRUE(have[i][0].eq(0).all().item<bool>()) << form.name << " " << kCoreResults[i];
        EXPECT_TRUE(have[i][1].narrow(1, 11, 21).eq(0).all().item<bool>()) << form.name << " " << kCoreResults[i];
        EXPECT_FALSE(have[i][1].narrow(1, 0, 11).isnan().any().item<bool>());
        EXPECT_GT(have[i][1].narrow(1, 0, 11).abs().max().item<double>(), 0);
      }
    }
  }
}

// Ring Self-Attention, check 2: rows of probabilities sum to 1, dK sums to 0 over the tokens, and dV sums to the sum of
// the output's gradient.
TEST(SequencePrecision, InvariantsHoldWithoutKnowingTheAnswer) {
  for (const Form& form : forms()) {
    for (const bool causal : {true, false}) {
      AttentionCase c{.ulysses = form.ulysses, .ring = form.ring, .length = 32};
      c.rule.causal = causal;
      const AttentionInputs in = inputs_of(c);
      const auto have = core_on_ranks(
          c, in, form.make, [&](Comm&, const at::Tensor&, const std::vector<at::Tensor>& kept, const auto&) {
            if (kept.back().dim() != 5) return;
            EXPECT_LT((kept.back().sum(-1) - 1).abs().max().item<double>(), 1e-14) << "rows of probabilities";
          });
      EXPECT_LT(have[3].sum(2).abs().max().item<double>(), 1e-12) << form.name << ", sum of dK";
      EXPECT_GT(have[3].abs().max().item<double>(), 1e-2);
      EXPECT_LT((have[4].sum(2) - in.dout.sum(2)).abs().max().item<double>(), 1e-12) << form.name << ", sum of dV";
    }
  }
}

// Ring attention and both forms of ring self-attention give the table of Ring Self-Attention, section 6 (check 1), for
// every ring size.
TEST(SequencePrecision, EveryRingHasTheReferenceTable) {
  AttentionCase c{.length = 16, .heads = 3, .key_heads = 3, .head_dim = 4};
  using Sums = std::array<std::array<double, 3>, 4>;  // for O, dQ, dK, dV: sum, weighted sum, sum of squares
  const Sums all = {{{-67.576201980042, 33.260890886626, 90.906775254073},
                     {10.303047610035, 7.2586203367317, 59.651875249419},
                     {0, -28.568786883408, 115.90969623585},
                     {12.329369997606, -14.284436005837, 68.527622795615}}};
  const Sums causal = {{{-63.433617292817, 48.244675801116, 180.85544788175},
                        {23.291666733199, -1.6977823650645, 72.841019076532},
                        {0, -27.762511307312, 137.79485931825},
                        {12.329369997606, -19.671913302284, 157.97584651352}}};
  for (const int ring : {1, 2, 4, 8, 16}) {
    for (const auto placement : {SequencePlacement::contiguous, SequencePlacement::zigzag}) {
      for (const bool is_causal : {true, false}) {
        c.ring = ring, c.placement = placement, c.rule.causal = is_causal;
        if (2 * ring > c.length && placement == SequencePlacement::zigzag) continue;
        for (const MakeCore& make : {MakeCore(usp), MakeCore(two_rings), MakeCore(two_rings_as_published)}) {
          const auto have = core_on_ranks(c, inputs_of(c), make);
          for (size_t i = 0; i < 4; ++i) {
            const auto sums = checksums(have[i == 0 ? 0 : i + 1]);
            for (size_t s = 0; s < 3; ++s)
              EXPECT_NEAR(sums[s], (is_causal ? causal : all)[i][s], 2e-11) << name_of(c) << i << s;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace orthant::precision_test
