// fit_hardware() finds the parameters from times that the model itself has made. Controls: other times give other
// parameters.
#include "hardware/fit.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/errors.h"

namespace orthant::fit_test {
namespace {

// A host of two cores whose times are those of the shipped CPU profile.
Hardware true_hardware() {
  Hardware hardware = load_hardware("this-cpu");
  hardware.attention.forward.tile_rows = hardware.attention.backward.tile_rows = 1;
  hardware.products.small_tile_share = 1;
  return hardware;
}

Measurements measure(const Hardware& hardware) {
  Measurements found{.host = "a host", .date = "2026-11-26", .cores = 2, .memory_bytes = 8e9, .process_bytes = 1e8};
  using enum ProductKind;
  for (const std::string dtype : {"float32", "bfloat16", "float64"}) {
    for (const ProductKind kind : {forward, input_gradient, weight_gradient}) {
      for (const int64_t m : {32, 100, 512}) {
        for (const int64_t n : {32, 256, 1000}) {
          found.products.push_back({kind, m, 128, n, dtype, product_seconds(hardware, kind, m, 128, n, dtype)});
        }
      }
    }
    for (const bool backward : {false, true}) {
      for (const int64_t tokens : {64, 512}) {
        const AttentionSize size = {.query_tokens = tokens, .key_tokens = tokens, .qk_head_dim = 64, .v_head_dim = 64};
        found.attention.push_back({backward, size, dtype, attention_seconds(hardware, backward, size, dtype)});
      }
    }
  }
  for (const double bytes : {1e4, 1e6, 1e8}) found.kernels.push_back({bytes, kernel_seconds(hardware, bytes)});
  using enum CollectiveKind;
  for (const int64_t ranks : {2, 4}) {
    for (const CollectiveKind kind : {all_reduce, all_gather, reduce_scatter, all_to_all, shift}) {
      if (kind == shift && ranks > 2) continue;
      for (const double bytes : {1e3, 1e5, 1e7}) {
        const double turns = ranks == 4 ? 2 : 1;  // four ranks take turns on two cores
        found.collectives.push_back(
            {kind, ranks, bytes, turns * collective_seconds(hardware, kind, {.ranks = ranks}, bytes)});
      }
    }
  }
  return found;
}

TEST(FitHardware, ExplainsTheTimesOfTheModel) {
  const Measurements measured = measure(true_hardware());
  const Hardware fitted = fit_hardware(measured);
  const FitErrors errors = fit_errors(fitted, measured);
  EXPECT_LT(errors.products, 0.02);
  EXPECT_LT(errors.attention, 0.02);
  EXPECT_LT(errors.kernels, 1e-6);
  EXPECT_LT(errors.collectives, 1e-6);
  EXPECT_NEAR(fitted.memory.latency_seconds, 5e-6, 1e-9);
  EXPECT_NEAR(fitted.memory.bytes_per_s, 8e9, 1e3);
  EXPECT_NEAR(fitted.same_host.message.latency_seconds, 10e-6, 1e-9);
  EXPECT_EQ(fitted.device.shared_cores, 2);
  EXPECT_EQ(fitted.same_host.all_reduce.front().ranks, 2);
  EXPECT_EQ(fitted.same_host.all_reduce.back().ranks, 0);
  EXPECT_EQ(parse_hardware(to_toml(fitted), "fitted"), fitted);

  Measurements slower = measured;
  for (MeasuredProduct& product : slower.products) product.seconds *= product.k == 128 && product.m > 32 ? 2 : 1;
  for (MeasuredCollective& collective : slower.collectives) collective.seconds *= 3;
  const FitErrors wrong = fit_errors(fitted, slower);
  EXPECT_GT(wrong.products, 0.2);
  EXPECT_GT(wrong.collectives, 0.6);
}

TEST(FitHardware, MarksWhatIsMeasured) {
  const Hardware fitted = fit_hardware(measure(true_hardware()));
  for (const TableOrigin& table : origins(fitted)) {
    const bool is_assumed = table.table == "step" || table.table.starts_with("between_hosts");
    EXPECT_EQ(table.measured, !is_assumed) << table.table;
    if (table.measured) {
      EXPECT_TRUE(table.origin.starts_with("measured: a host, orthant calibrate, 2026-11-26"));
    }
  }
}

// Collectives between one rank on each of 2 and 4 hosts, and messages. Those of more than 1 MB take `slower` times as
// long.
std::vector<MeasuredCollective> measure_network(const Hardware& hardware, double slower) {
  std::vector<MeasuredCollective> found;
  using enum CollectiveKind;
  for (const int64_t ranks : {2, 4}) {
    for (const CollectiveKind kind : {all_reduce, all_gather, reduce_scatter, all_to_all, shift}) {
      if (kind == shift && ranks > 2) continue;
      for (const double bytes : {1.0, 1e5, 1e8}) {
        const double seconds = collective_seconds(hardware, kind, {.ranks = ranks, .hosts = ranks}, bytes);
        found.push_back({kind, ranks, bytes, seconds * (bytes > 1e6 ? slower : 1)});
      }
    }
  }
  return found;
}

TEST(FitNetwork, HasTheTimesOfTheSmallestAndTheLargestMessage) {
  for (const double slower : {1.0, 3.0}) {
    Hardware fitted = true_hardware();
    const std::vector<MeasuredCollective> measured = measure_network(fitted, slower);
    fitted.between_hosts = fit_network(measured, "measured: hosts of a test, 2026-11");
    EXPECT_EQ(parse_hardware(to_toml(fitted), "fitted"), fitted);
    for (const MeasuredCollective& c : measured) {
      const double seconds = collective_seconds(fitted, c.kind, {.ranks = c.ranks, .hosts = c.ranks}, c.bytes_sent);
      const bool is_between = c.bytes_sent > 1 && c.bytes_sent < 1e8;
      const bool is_explained = std::abs(seconds / c.seconds - 1) < 1e-3;
      EXPECT_EQ(is_explained, !is_between || slower == 1) << name_of(c.kind) << " " << c.ranks << " " << c.bytes_sent;
    }
  }
}

TEST(FitHardware, RequiresMeasurementsOfEveryKind) {
  const Measurements all = measure(true_hardware());
  Measurements without = all;
  without.kernels.clear();
  EXPECT_THROW(fit_hardware(without), LogicError);
  without = all;
  std::erase_if(without.products, [](const MeasuredProduct& product) { return product.dtype == "bfloat16"; });
  EXPECT_THROW(fit_hardware(without), LogicError);
  without = all;
  std::erase_if(without.collectives, [](const MeasuredCollective& c) { return c.kind == CollectiveKind::shift; });
  EXPECT_THROW(fit_hardware(without), LogicError);
}

}  // namespace
}  // namespace orthant::fit_test
