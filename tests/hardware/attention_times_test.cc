// Times of attention and of memory-bound kernels. Source of the measurements: SimuMax v1.2 system files of 8 x B200 SXM
// and 8 x A100 PCIe, 2026-05. The measured shares count all pairs of tokens. The model counts the half that a causal
// mask leaves visible.
#include <gtest/gtest.h>

#include <cmath>
#include <span>
#include <string>

#include "base/errors.h"
#include "hardware/times.h"

namespace orthant::attention_times_test {
namespace {

struct MeasuredAttention {
  bool backward;
  int64_t tokens, heads, kv_heads, qk_head_dim, v_head_dim;
  double share_of_peak;

  AttentionSize size() const {
    return {.query_tokens = tokens, .key_tokens = tokens, .heads = heads, .kv_heads = kv_heads,
            .qk_head_dim = qk_head_dim, .v_head_dim = v_head_dim};
  }
};

constexpr MeasuredAttention kB200[] = {
    {false, 4096, 64, 8, 128, 128, 0.8715},
    {false, 4096, 128, 16, 128, 128, 0.9967},
    {false, 4096, 16, 16, 192, 128, 0.6368},
    {false, 4096, 4, 1, 128, 128, 0.1669},
    {false, 32768, 8, 1, 128, 128, 1.2018},
    {true, 4096, 32, 4, 128, 128, 0.7963},
    {true, 4096, 128, 128, 192, 128, 0.6426},
    {true, 4096, 32, 8, 128, 128, 0.787},
    {true, 131072, 16, 2, 128, 128, 0.8267},
    {true, 131072, 64, 64, 192, 128, 0.658},
};

constexpr MeasuredAttention kA100Pcie[] = {
    {false, 4096, 128, 128, 192, 128, 1.073},
    {false, 4096, 32, 32, 192, 128, 1.0153},
    {false, 4096, 32, 8, 128, 128, 1.132},
    {false, 4096, 8, 2, 128, 128, 0.7768},
    {false, 4096, 64, 8, 128, 128, 1.187},
    {false, 4096, 16, 2, 128, 128, 0.9877},
    {true, 4096, 128, 128, 192, 128, 0.8018},
    {true, 4096, 32, 32, 192, 128, 0.7799},
    {true, 4096, 32, 8, 128, 128, 0.9764},
    {true, 4096, 8, 2, 128, 128, 0.7628},
    {true, 4096, 64, 8, 128, 128, 1.0051},
    {true, 4096, 16, 2, 128, 128, 0.8881},
};

// Returns the mean of |model / measured - 1|. `visible_share` is the share of pairs that the model counts.
double mean_error(const Hardware& hardware, std::span<const MeasuredAttention> rows, double visible_share = 0.5) {
  double sum = 0;
  for (const MeasuredAttention& row : rows) {
    AttentionSize size = row.size();
    size.visible_share = 1;
    const double measured =
        attention_flop(size, row.backward) / (hardware.peak_flop_per_s.bfloat16 * row.share_of_peak);
    size.visible_share = visible_share;
    sum += std::abs(attention_seconds(hardware, row.backward, size, "bfloat16") / measured - 1);
  }
  return sum / static_cast<double>(rows.size());
}

TEST(AttentionTimes, AgreeWithMeasurements) {
  EXPECT_LT(mean_error(load_hardware("b200-8x"), kB200), 0.09);
  EXPECT_LT(mean_error(load_hardware("a100-pcie"), kA100Pcie), 0.04);
}

// Negative controls: without the causal mask, or without the power limit, the errors exceed the bounds above.
TEST(AttentionTimes, WrongModelsExceedTheBounds) {
  EXPECT_GT(mean_error(load_hardware("b200-8x"), kB200, 1), 0.5);
  EXPECT_GT(mean_error(load_hardware("a100-pcie"), kA100Pcie, 1), 0.5);
  Hardware hardware = load_hardware("b200-8x");
  hardware.attention.sustained_share = 1;
  EXPECT_GT(mean_error(hardware, kB200), 0.09);
}

TEST(AttentionTimes, CountFlops) {
  const AttentionSize size = {.sequences = 2, .query_tokens = 3, .key_tokens = 5, .heads = 4, .kv_heads = 2,
                              .qk_head_dim = 6, .v_head_dim = 7, .visible_share = 1};
  EXPECT_EQ(attention_flop(size, false), 2 * 2 * 3 * 5 * 4 * (6 + 7));
  EXPECT_EQ(attention_flop(size, true), 2.5 * 2 * 2 * 3 * 5 * 4 * (6 + 7));
}

TEST(AttentionTimes, MoreWorkIsNeverFaster) {
  const int64_t factors[] = {1, 2, 3, 8, 40, 100};
  for (const std::string& name : shipped_hardware()) {
    const Hardware hardware = load_hardware(name);
    for (const bool backward : {false, true}) {
      for (int64_t AttentionSize::*field : {&AttentionSize::sequences, &AttentionSize::query_tokens,
                                            &AttentionSize::key_tokens, &AttentionSize::heads,
                                            &AttentionSize::kv_heads, &AttentionSize::qk_head_dim,
                                            &AttentionSize::v_head_dim}) {
        double before = 0;
        for (const int64_t factor : factors) {
          AttentionSize size = {.query_tokens = 100, .key_tokens = 300, .heads = 4, .kv_heads = 4, .qk_head_dim = 24,
                                .v_head_dim = 16};
          size.*field *= factor;
          const double now = attention_seconds(hardware, backward, size, "bfloat16");
          ASSERT_GE(now, before) << name << " " << factor;
          before = now;
        }
      }
      const AttentionSize causal = {.query_tokens = 4096, .key_tokens = 4096, .heads = 8, .kv_heads = 8,
                                    .qk_head_dim = 128, .v_head_dim = 128};
      AttentionSize full = causal;
      full.visible_share = 1;
      EXPECT_LE(attention_seconds(hardware, backward, causal, "float32"),
                attention_seconds(hardware, backward, full, "float32"));
    }
  }
}

TEST(AttentionTimes, RequirePositiveSizes) {
  const Hardware hardware = load_hardware("b200-8x");
  EXPECT_THROW(attention_seconds(hardware, false, {.heads = 0}, "bfloat16"), LogicError);
  EXPECT_THROW(attention_seconds(hardware, false, {.visible_share = 1.5}, "bfloat16"), LogicError);
  EXPECT_THROW(attention_seconds(hardware, false, {}, "complex64"), LogicError);
}

// Scores with a cap are products of float32 numbers, also in bfloat16.
TEST(AttentionTimes, StoredScoresTakeTheRateOfFloat32) {
  const Hardware hardware = load_hardware("h100-8x");
  AttentionSize size{
      .query_tokens = 4096, .key_tokens = 4096, .heads = 16, .kv_heads = 16, .qk_head_dim = 128, .v_head_dim = 128};
  const double fused = attention_seconds(hardware, false, size, "bfloat16");
  size.stores_scores = true;
  const double stored = attention_seconds(hardware, false, size, "bfloat16");
  const double products = attention_flop(size, false) / hardware.peak_flop_per_s.float32;
  EXPECT_LT(fused, products);
  EXPECT_GT(stored, products);
  EXPECT_NEAR(stored, attention_seconds(hardware, false, size, "float32"), 0.1 * stored);
}

TEST(KernelTimes, AreLatencyPlusBytesOverBandwidth) {
  // B200: 8000 x 2^30 bytes/s, of which kernels reach 0.666, and 30 us a kernel. A100 PCIe: 1600 x 2^30, 0.91, 40 us.
  EXPECT_EQ(kernel_seconds(load_hardware("b200-8x"), 0), 0);
  EXPECT_NEAR(kernel_seconds(load_hardware("b200-8x"), 1e9), 30e-6 + 1e9 / (8000 * std::pow(2, 30) * 0.666), 1e-7);
  EXPECT_NEAR(kernel_seconds(load_hardware("a100-pcie"), 1e9), 40e-6 + 1e9 / (1600 * std::pow(2, 30) * 0.91), 1e-7);
  EXPECT_THROW(kernel_seconds(load_hardware("b200-8x"), -1), LogicError);
}

}  // namespace
}  // namespace orthant::attention_times_test
