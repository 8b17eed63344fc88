// Times of products against measured shares of the peak, and their monotonicity.
// Source of the measurements: SimuMax v1.2 system files of 8 x B200 SXM and 8 x A100 PCIe, 2026-05. The samples are
// every 17th row and every 6th row of the products.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "hardware/times.h"

namespace orthant::product_times_test {
namespace {

struct MeasuredProduct {
  ProductKind kind;
  int64_t m, k, n;
  double share_of_peak;

  double seconds(double peak_flop_per_s) const {
    return 2.0 * static_cast<double>(m) * static_cast<double>(k) * static_cast<double>(n) /
           (peak_flop_per_s * share_of_peak);
  }
};

constexpr MeasuredProduct kB200[] = {
    {ProductKind::forward, 4096, 8192, 10240, 0.6452},
    {ProductKind::weight_gradient_float32, 5120, 4096, 8192, 0.4732},
    {ProductKind::input_gradient, 4096, 8192, 2048, 0.553},
    {ProductKind::forward, 4096, 8192, 7168, 0.6113},
    {ProductKind::weight_gradient_float32, 106496, 4096, 16384, 0.4562},
    {ProductKind::input_gradient, 4096, 16384, 26624, 0.4978},
    {ProductKind::forward, 4096, 16384, 32128, 0.4995},
    {ProductKind::weight_gradient_float32, 16128, 4096, 16384, 0.4487},
    {ProductKind::input_gradient, 4096, 5120, 12288, 0.4846},
    {ProductKind::forward, 4096, 5120, 102400, 0.4872},
    {ProductKind::weight_gradient_float32, 7168, 4096, 18432, 0.4549},
    {ProductKind::input_gradient, 4096, 129280, 7168, 0.4265},
    {ProductKind::weight_gradient, 1280, 4096, 8192, 0.5549},
    {ProductKind::weight_gradient, 26624, 4096, 16384, 0.4931},
    {ProductKind::weight_gradient, 3072, 24640, 5120, 0.5403},
    {ProductKind::forward, 4096, 4096, 4096, 0.6376},
    {ProductKind::weight_gradient_float32, 4096, 4096, 2048, 0.6171},
    {ProductKind::input_gradient, 4096, 4096, 3584, 0.467},
    {ProductKind::forward, 4096, 4096, 16128, 0.6353},
    {ProductKind::weight_gradient, 768, 4096, 4096, 0.3681},
    {ProductKind::input_gradient, 16384, 57344, 8192, 0.5052},
    {ProductKind::forward, 2048, 2048, 8192, 0.4525},
    {ProductKind::forward, 2048, 8192, 32128, 0.4981},
    {ProductKind::forward, 32768, 16384, 64128, 0.4715},
    {ProductKind::weight_gradient_float32, 5120, 32768, 8192, 0.4723},
    {ProductKind::input_gradient, 8192, 16384, 8192, 0.511},
    {ProductKind::forward, 8192, 8192, 16384, 0.4766},
    {ProductKind::forward, 16384, 16384, 5120, 0.5058},
    {ProductKind::weight_gradient_float32, 24576, 16384, 1536, 0.5108},
    {ProductKind::forward, 65536, 12288, 5120, 0.4957},
    {ProductKind::forward, 65536, 5120, 576, 0.3562},
};

constexpr MeasuredProduct kA100Pcie[] = {
    {ProductKind::forward, 4096, 5120, 1536, 0.7877},
    {ProductKind::forward, 4096, 5120, 576, 0.4968},
    {ProductKind::forward, 4096, 16384, 5120, 0.7493},
    {ProductKind::forward, 4096, 12288, 5120, 0.7717},
    {ProductKind::forward, 4096, 3072, 5120, 0.7175},
    {ProductKind::forward, 24640, 1536, 5120, 0.7029},
    {ProductKind::forward, 4096, 7168, 1536, 0.803},
    {ProductKind::forward, 4096, 16384, 7168, 0.7423},
    {ProductKind::forward, 4096, 18432, 7168, 0.7389},
    {ProductKind::forward, 4096, 2048, 7168, 0.6813},
    {ProductKind::forward, 33024, 2048, 7168, 0.7317},
    {ProductKind::forward, 4096, 4096, 6144, 0.7168},
    {ProductKind::forward, 4096, 4096, 28672, 0.7373},
    {ProductKind::forward, 4096, 4096, 128384, 0.7458},
    {ProductKind::forward, 4096, 2048, 4096, 0.6821},
    {ProductKind::forward, 4096, 4096, 64256, 0.746},
    {ProductKind::forward, 4096, 1024, 4096, 0.6162},
    {ProductKind::forward, 4096, 3584, 4096, 0.7056},
    {ProductKind::forward, 4096, 4096, 768, 0.7654},
    {ProductKind::forward, 4096, 4096, 3584, 0.6572},
    {ProductKind::forward, 4096, 4096, 16128, 0.7344},
    {ProductKind::forward, 4096, 8192, 8192, 0.7327},
    {ProductKind::forward, 4096, 28672, 8192, 0.7411},
    {ProductKind::forward, 4096, 8192, 5120, 0.7547},
    {ProductKind::forward, 4096, 8192, 28672, 0.7478},
    {ProductKind::forward, 4096, 8192, 64128, 0.7463},
    {ProductKind::forward, 4096, 2048, 8192, 0.6787},
    {ProductKind::forward, 4096, 7168, 8192, 0.7279},
    {ProductKind::forward, 4096, 8192, 1280, 0.6625},
    {ProductKind::forward, 4096, 8192, 7168, 0.7212},
    {ProductKind::forward, 4096, 8192, 16128, 0.7494},
};

struct FitError {
  double mean = 0;        // mean of |model / measured - 1|
  double total_bias = 0;  // relative error of the sum of all times
};

FitError fit_error(const Hardware& hardware, std::span<const MeasuredProduct> rows) {
  FitError error;
  double model = 0, measured = 0;
  for (const MeasuredProduct& row : rows) {
    const double seconds = product_seconds(hardware, row.kind, row.m, row.k, row.n, "bfloat16");
    const double expected = row.seconds(load_hardware(hardware.name).peak_flop_per_s.bfloat16);
    error.mean += std::abs(seconds / expected - 1) / static_cast<double>(rows.size());
    model += seconds;
    measured += expected;
  }
  error.total_bias = model / measured - 1;
  return error;
}

TEST(ProductTimes, AgreeWithMeasurementsOfB200) {
  const FitError error = fit_error(load_hardware("b200-8x"), kB200);
  EXPECT_LT(error.mean, 0.12);
  EXPECT_LT(std::abs(error.total_bias), 0.05);
}

TEST(ProductTimes, AgreeWithMeasurementsOfA100Pcie) {
  const FitError error = fit_error(load_hardware("a100-pcie"), kA100Pcie);
  EXPECT_LT(error.mean, 0.04);
  EXPECT_LT(std::abs(error.total_bias), 0.02);
}

// Negative controls: another peak, no power limit, or products with m and k exchanged exceed the bounds above.
TEST(ProductTimes, WrongModelsExceedTheBounds) {
  Hardware b200 = load_hardware("b200-8x");
  b200.peak_flop_per_s.bfloat16 *= 0.85;
  EXPECT_GT(std::abs(fit_error(b200, kB200).total_bias), 0.05);
  b200 = load_hardware("b200-8x");
  b200.products.sustained_share = 1;
  EXPECT_GT(fit_error(b200, kB200).mean, 0.12);

  Hardware a100 = load_hardware("a100-pcie");
  a100.peak_flop_per_s.bfloat16 *= 0.95;
  EXPECT_GT(std::abs(fit_error(a100, kA100Pcie).total_bias), 0.02);
  a100 = load_hardware("a100-pcie");
  a100.products.wave_loss = 0;
  EXPECT_GT(fit_error(a100, kA100Pcie).mean, 0.04);
  std::vector<MeasuredProduct> exchanged(std::begin(kA100Pcie), std::end(kA100Pcie));
  for (MeasuredProduct& row : exchanged) std::swap(row.m, row.k);
  EXPECT_GT(fit_error(load_hardware("a100-pcie"), exchanged).mean, 0.04);
}

TEST(ProductTimes, MoreWorkIsNeverFaster) {
  const int64_t sizes[] = {1, 7, 127, 128, 129, 512, 1000, 4096, 4097, 28672, 128256, 1'000'000};
  for (const std::string& name : shipped_hardware()) {
    const Hardware hardware = load_hardware(name);
    for (const ProductKind kind : {ProductKind::forward, ProductKind::weight_gradient_float32}) {
      for (const int64_t a : sizes) {
        for (const int64_t b : sizes) {
          double before[3] = {0, 0, 0};
          for (const int64_t size : sizes) {
            const double now[3] = {product_seconds(hardware, kind, size, a, b, "bfloat16"),
                                   product_seconds(hardware, kind, a, size, b, "bfloat16"),
                                   product_seconds(hardware, kind, a, b, size, "bfloat16")};
            for (int i = 0; i < 3; ++i) {
              ASSERT_GE(now[i], before[i]) << name << " " << a << " " << b << " " << size << ", operand " << i;
              before[i] = now[i];
            }
          }
        }
      }
    }
  }
}

TEST(ProductTimes, AreBoundedByPeakAndBandwidth) {
  for (const std::string& name : shipped_hardware()) {
    const Hardware hardware = load_hardware(name);
    const double compute = product_seconds(hardware, ProductKind::forward, 8192, 8192, 8192, "bfloat16");
    EXPECT_GT(compute, 2 * std::pow(8192.0, 3) / hardware.peak_flop_per_s.bfloat16) << name;
    const double traffic = product_seconds(hardware, ProductKind::forward, 1, 65536, 65536, "float32");
    EXPECT_GT(traffic, 4 * std::pow(65536.0, 2) / hardware.memory.bytes_per_s) << name;
  }
}

TEST(ProductTimes, DependOnTheDtype) {
  const Hardware hardware = load_hardware("b200-8x");
  const auto seconds = [&](std::string_view dtype) {
    return product_seconds(hardware, ProductKind::forward, 4096, 4096, 4096, dtype);
  };
  EXPECT_LT(seconds("bfloat16"), seconds("float32"));
  EXPECT_LT(seconds("float32"), seconds("float64"));
  EXPECT_THROW(seconds("int8"), LogicError);
  EXPECT_THROW(product_seconds(hardware, ProductKind::forward, 0, 1, 1, "bfloat16"), LogicError);
}

TEST(ProductTimes, AccumulationInFloat32MovesMoreBytes) {
  const Hardware hardware = load_hardware("a100-pcie");
  EXPECT_GT(product_seconds(hardware, ProductKind::weight_gradient_float32, 4096, 1024, 4096, "bfloat16"),
            product_seconds(hardware, ProductKind::weight_gradient, 4096, 1024, 4096, "bfloat16"));
}

TEST(ProductTimes, StayFiniteForTheLargestSizes) {
  const int64_t most = std::numeric_limits<int64_t>::max();
  const Hardware hardware = load_hardware("this-cpu");
  EXPECT_TRUE(std::isfinite(product_seconds(hardware, ProductKind::forward, most, most, most, "float64")));
}

}  // namespace
}  // namespace orthant::product_times_test
