// Collectives take the time of the direction in which a rank moves more.
#include "plan/collective_time.h"

#include <gtest/gtest.h>

namespace orthant::collective_time_test {
namespace {

TEST(CollectiveTime, IsThatOfTheLargerDirection) {
  const Mesh mesh({{"data", 4}});
  const Axes axes = {"data"};
  Hardware hardware = load_hardware("h100-8x");
  const auto seconds = [&](CollectiveKind kind, const Moved& bytes) {
    return collective_seconds(mesh, hardware, kind, axes, 1, bytes);
  };
  using enum CollectiveKind;
  for (const CollectiveKind kind : {all_gather, reduce_scatter, all_to_all, broadcast}) {
    EXPECT_EQ(seconds(kind, {1 << 20, 1 << 28}), seconds(kind, {1 << 28, 1 << 20})) << name_of(kind);
    EXPECT_GT(seconds(kind, {1 << 20, 1 << 28}), 2 * seconds(kind, {1 << 20, 1 << 20})) << name_of(kind);
  }
  // On GPUs a reduce is a chain, whose root receives one tensor. On CPUs the root receives one from every other rank.
  EXPECT_EQ(seconds(reduce, {0, 3 << 26}), seconds(reduce, {1 << 26, 0}));
  hardware.device.communication_uses_compute = true;
  EXPECT_GT(seconds(reduce, {0, 3 << 26}), 2 * seconds(reduce, {1 << 26, 0}));
}

}  // namespace
}  // namespace orthant::collective_time_test
