// Attention with log-sum-exp: both kernels equal the dense definition for every kind of visibility, on the full
// sequence and on blocks of keys that are merged. The published table of reference values is a second oracle.
#include "model/attention.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "model/attention_core.h"
#include "model/primitives.h"
#include "tests/support/dense_attention.h"
#include "tests/support/gpus.h"
#include "tests/support/reference_values.h"

namespace orthant::attention_test {
namespace {

std::vector<int64_t> range(int64_t begin, int64_t end) {
  std::vector<int64_t> positions(static_cast<size_t>(end - begin));
  std::iota(positions.begin(), positions.end(), begin);
  return positions;
}

double error(const at::Tensor& have, const at::Tensor& want) {
  const at::Tensor h = have.to(at::kDouble).nan_to_num(1e9, 1e9, -1e9),
                   w = want.to(at::kDouble).nan_to_num(1e9, 1e9, -1e9);
  return (h - w).norm().item<double>() / std::max(1e-300, w.norm().item<double>());
}

// Output, log-sum-exp, dQ, dK and dV, computed over `blocks` blocks of keys and merged as a ring merges them. The last
// block comes first.
std::array<at::Tensor, 5> in_blocks(AttentionKernel kernel, const AttentionInputs& in, const Visibility& v,
                                    int64_t blocks) {
  const int64_t S = in.k.size(2);
  const auto sum_type = in.q.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  PartialAttention sum;
  auto block = [&](int64_t b) { return std::pair{S * b / blocks, S * (b + 1) / blocks}; };
  for (int64_t b = blocks; b-- > 0;) {
    const auto [begin, end] = block(b);
    PartialAttention part = attend(kernel, in.q, in.k.slice(2, begin, end), in.v.slice(2, begin, end),
                                   attention_tiles(v, range(begin, end)), in.rule());
    part.out_BHTD = part.out_BHTD.to(sum_type);
    if (sum.out_BHTD.defined())
      merge_partial_attention(sum, part);
    else sum = part;
  }
  const at::Tensor out = sum.out_BHTD.to(in.q.scalar_type());
  const auto options = in.q.options().dtype(sum_type);
  std::array<at::Tensor, 5> all{out, sum.lse_BHT, at::zeros(in.q.sizes(), options), at::zeros(in.k.sizes(), options),
                                at::zeros(in.v.sizes(), options)};
  for (int64_t b = 0; b < blocks; ++b) {
    const auto [begin, end] = block(b);
    const auto g = attend_backward(kernel, in.dout, in.q, in.k.slice(2, begin, end), in.v.slice(2, begin, end), out,
                                   sum.lse_BHT, attention_tiles(v, range(begin, end)), in.rule());
    all[2].add_(g.dq_BHTD);
    all[3].slice(2, begin, end).copy_(g.dk_BKSD);
    all[4].slice(2, begin, end).copy_(g.dv_BKSD);
  }
  return all;
}

std::vector<std::pair<std::string, Visibility>> visibilities(int64_t L) {
  const std::vector<int64_t> starts[] = {{0, L / 3, L - 2}, {0, 1}};
  const int64_t lengths[] = {L - 3, 1}, none[] = {L, 0};
  const auto positions = range(0, L);
  return {{"causal", compute_visibility({}, positions, L)},
          {"bidirectional", compute_visibility({.causal = false}, positions, L)},
          {"window", compute_visibility({.sliding_window = 5}, positions, L)},
          {"bidirectional window", compute_visibility({.causal = false, .sliding_window = 3}, positions, L)},
          {"documents", compute_visibility({}, positions, L, starts)},
          {"padding", compute_visibility({.causal = false}, positions, L, {}, lengths)},
          {"nothing to see", compute_visibility({.causal = false}, positions, L, {}, none)},
          {"all of it", compute_visibility({.sliding_window = 7}, positions, L, starts, lengths)}};
}

// In float64, all five results equal the dense definition within 1e-13 for any number of blocks of keys.
TEST(Attention, EqualsTheDefinitionUnsplitAndInBlocks) {
  for (const int64_t L : {16, 100}) {
    for (const auto& [H, K] : {std::pair{4, 4}, {6, 2}, {3, 1}}) {
      const AttentionInputs in = attention_inputs(2, H, K, L, 8);
      for (const auto& [name, v] : visibilities(L)) {
        const auto want = dense_attention(in, v);
        for (const auto kernel : {AttentionKernel::flash, AttentionKernel::plain}) {
          for (const int64_t blocks : {1, 2, 3, 5}) {
            const auto have = in_blocks(kernel, in, v, blocks);
            for (size_t i = 0; i < have.size(); ++i) {
              EXPECT_LT(error(have[i], want[i]), 1e-13) << name << ", " << L << " tokens, " << H << "/" << K
                                                        << " heads, " << blocks << " blocks, result " << i;
              EXPECT_FALSE(have[i].isnan().any().item<bool>());
            }
          }
        }
      }
    }
  }
}

// So they do with capped scores, also where these are stored for several blocks of queries (1500 tokens).
TEST(Attention, WithACapEqualsTheDefinition) {
  for (const auto& [L, H, K] : {std::tuple{100, 6, 2}, {16, 3, 1}, {1500, 4, 4}}) {
    AttentionInputs in = attention_inputs(L > 1000 ? 1 : 2, H, K, L, 8);
    const auto without = dense_attention(in, visibilities(L)[0].second);
    in.softcap = 1.5;
    EXPECT_GT(error(without[2], dense_attention(in, visibilities(L)[0].second)[2]), 1e-2);
    for (const auto& [name, v] : visibilities(L)) {
      const auto want = dense_attention(in, v);
      for (const auto kernel : {AttentionKernel::flash, AttentionKernel::plain}) {
        for (const int64_t blocks : {1, 3}) {
          const auto have = in_blocks(kernel, in, v, blocks);
          for (size_t i = 0; i < have.size(); ++i) {
            EXPECT_LT(error(have[i], want[i]), 1e-13) << name << ", " << L << " tokens, " << blocks << " blocks, " << i;
          }
        }
      }
      if (L > 1000) break;  // a causal tile of several blocks of queries
    }
  }
}

// Bound of the relative error, in the norm, of each of the five results. It is derived in docs/derivations.md, section
// "Attention in lower precision".
double rounding_bound(at::ScalarType type, int64_t keys) {
  const double u32 = 0x1p-24, u = type == at::kFloat ? u32 : 0x1p-8;
  return std::sqrt(5.0) * (std::sqrt(static_cast<double>(keys)) * u32 + u);
}

TEST(Attention, InLowerPrecisionStaysWithinItsRounding) {
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    AttentionInputs in = attention_inputs(2, 4, 2, 96, 16, type);
    for (const double softcap : {0.0, 1.5}) {
      in.softcap = softcap;
      for (const auto& [name, v] : visibilities(96)) {
        const auto want = dense_attention(in, v);
        for (const int64_t blocks : {1, 3}) {
          const auto have = in_blocks(AttentionKernel::flash, in, v, blocks);
          for (size_t i = 0; i < have.size(); ++i) {
            EXPECT_LT(error(have[i], want[i]), rounding_bound(type, 96))
                << name << i << " " << blocks << " " << softcap;
          }
        }
      }
    }
  }
}

// Checksums equal the published table of the Ring Self-Attention reference, section 6, within its printed digits.
TEST(Attention, HasTheReferenceValues) {
  const AttentionInputs in = attention_inputs(2, 3, 3, 16, 4);
  const int64_t lengths[] = {13, 10};
  // In the table, padded queries attend to the tokens that are not padded.
  Visibility padded = compute_visibility({.causal = false}, range(0, 16), 16, {}, lengths);
  for (size_t i = 0; i < padded.end.size(); ++i) padded.end[i] = lengths[i / 16];
  struct Row {
    Visibility v;
    std::array<std::array<double, 3>, 4> sums;  // for O, dQ, dK, dV: sum, weighted sum, sum of squares
  };
  const Row rows[] = {{compute_visibility({.causal = false}, range(0, 16), 16),
                       {{{-67.576201980042, 33.260890886626, 90.906775254073},
                         {10.303047610035, 7.2586203367317, 59.651875249419},
                         {0, -28.568786883408, 115.90969623585},
                         {12.329369997606, -14.284436005837, 68.527622795615}}}},
                      {padded,
                       {{{-74.222919467769, 30.862667363971, 119.83931011403},
                         {22.136625541016, 4.6992404734015, 74.069430936917},
                         {0, -32.484304293923, 136.80426730258},
                         {12.329369997606, -31.076762561100, 95.086488271569}}}},
                      {compute_visibility({}, range(0, 16), 16),
                       {{{-63.433617292817, 48.244675801116, 180.85544788175},
                         {23.291666733199, -1.6977823650645, 72.841019076532},
                         {0, -27.762511307312, 137.79485931825},
                         {12.329369997606, -19.671913302284, 157.97584651352}}}}};
  for (const Row& row : rows) {
    const auto have = in_blocks(AttentionKernel::flash, in, row.v, 1);
    for (size_t i = 0; i < 4; ++i) {
      const auto sums = checksums(have[i == 0 ? 0 : i + 1]);
      for (size_t s = 0; s < 3; ++s) EXPECT_NEAR(sums[s], row.sums[i][s], 2e-11) << i << " " << s;
    }
  }
}

// One core applies the visibility rule of each call, although it caches the visibility of a batch: a cached rule is not
// used for another rule of the same batch.
TEST(LocalAttention, FollowsEveryRule) {
  const AttentionInputs in = attention_inputs(2, 4, 2, 16, 8);
  const AttentionCore core = local_attention();
  Microbatch batch{.sequence_length = 16};
  batch.packing = std::make_shared<Packing>(Packing{.document_starts = {{0, 9}, {0, 2}}, .lengths = {}});
  for (const auto& rule : {VisibilityRule{}, {.sliding_window = 5}, {.causal = false}, {.sliding_window = 3}}) {
    const AttentionShape shape{.heads = 4, .kv_heads = 2, .head_dim = 8, .rule = rule};
    AttentionInputs scaled = in;
    scaled.scale = 1 / std::sqrt(8.0);
    const auto want = dense_attention(scaled, visibility(batch, rule, range(0, 16)));
    const auto kept = core.forward(in.q, in.k, in.v, batch, shape);
    EXPECT_LT(error(kept[0], want[0]), 1e-13) << rule.sliding_window;
    EXPECT_LT(error(core.backward(in.dout, kept, batch, shape).dq_BHTD, want[2]), 1e-13) << rule.sliding_window;
  }
}

// On a GPU, the results stay within the rounding bound. In bfloat16, tiles without a mask run in cuDNN, or in ATen's
// flash attention if heads are wide. Masks and float32 run in memory-efficient attention.
TEST(AttentionGpu, StaysWithinItsRounding) {
  REQUIRE_GPU();
  for (const auto& [type, width] : {std::pair{at::kFloat, 16}, {at::kBFloat16, 16}, {at::kBFloat16, 256}}) {
    AttentionInputs in = attention_inputs(2, 4, 2, 96, width, type);
    for (const auto& [name, v] : visibilities(96)) {
      const auto want = dense_attention(in, v);
      AttentionInputs there = in;
      for (at::Tensor* t : {&there.q, &there.k, &there.v, &there.dout}) *t = t->to(at::kCUDA);
      for (const int64_t blocks : {1, 3}) {
        const auto have = in_blocks(AttentionKernel::flash, there, v, blocks);
        for (size_t i = 0; i < have.size(); ++i) {
          EXPECT_LT(error(have[i].cpu(), want[i]), rounding_bound(type, 96)) << name << i << " " << blocks;
        }
      }
    }
  }
}

// Linformer's padding mask is created on the device of the inputs. The meta device shows this: it refuses a product
// with a tensor of another device. (It would accept a mask of hidden pairs from any device.)
TEST(PlainAttention, MakesPaddingOnItsInputsDevice) {
  const auto there = at::TensorOptions(at::kMeta).dtype(at::kFloat);
  const Weight e{.value = at::empty({6, 3}, there), .gradient = {}};
  const Weight f{.value = at::empty({6, 3}, there), .gradient = {}};
  for (const auto& lengths : {std::vector<int64_t>{}, {6, 4}}) {
    Microbatch batch{.positions_BT = at::empty({2, 6}, there.dtype(at::kLong)), .sequence_length = 6};
    batch.packing = std::make_shared<Packing>(Packing{.document_starts = {}, .lengths = lengths});
    const AttentionShape shape{.heads = 4, .kv_heads = 2, .head_dim = 4, .cos_PD = at::empty({8, 2}, there),
                               .sin_PD = at::empty({8, 2}, there), .rule = {.causal = false}, .linformer_k = &e,
                               .linformer_v = &f};
    EXPECT_EQ(plain_primitives().attention(at::empty({2, 6, 32}, there), batch, shape).sizes(),
              at::IntArrayRef({2, 6, 16}));
  }
}

// Blocks whose logits differ by 1e4 are merged without overflow: one key of the first or of the last block is far above
// all others.
TEST(Attention, MergesBlocksOfVeryDifferentSize) {
  for (const int64_t large : {0, 31}) {
    AttentionInputs in = attention_inputs(1, 1, 1, 32, 8, at::kFloat);
    in.q.slice(3, 0, 1).fill_(100);
    in.k.slice(3, 0, 1).fill_(0);
    in.k.slice(3, 0, 1).slice(2, large, large + 1).fill_(200);
    const auto v = compute_visibility({.causal = false}, range(0, 32), 32);
    const auto want = dense_attention(in, v);
    const auto have = in_blocks(AttentionKernel::flash, in, v, 4);
    for (size_t i = 0; i < 5; ++i) {
      EXPECT_TRUE(have[i].isfinite().all().item<bool>());
    }
    for (size_t i = 0; i < 2; ++i) {
      EXPECT_LT(error(have[i], want[i]), 1e-5) << i;
    }
  }
}

}  // namespace
}  // namespace orthant::attention_test
