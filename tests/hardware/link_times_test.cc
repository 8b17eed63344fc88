// Times of collectives and messages: the measured lines of B200 and A100 PCIe, rings over hosts, and monotonicity.
// Source of the measurements: SimuMax v1.2 system files, 2026-05. There 1 GB/s is 2^30 bytes/s, and a collective of n
// ranks has n - 1 steps, an all-reduce twice as many.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "base/errors.h"
#include "hardware/times.h"

namespace orthant::link_times_test {
namespace {

constexpr double kGiB = 1024.0 * 1024 * 1024;
constexpr double kMicro = 1e-6;

struct MeasuredLine {
  const char* profile;
  CollectiveKind kind;
  int64_t ranks;
  double link_gib_per_s, share, step_us, fixed_us, steps;

  double seconds(double bytes) const {
    return (fixed_us + step_us * steps) * kMicro + bytes / (link_gib_per_s * kGiB * share);
  }
};

constexpr MeasuredLine kLines[] = {
    {"b200-8x", CollectiveKind::all_reduce, 8, 900, 0.7424, 5.5183, 22.2316, 14},
    {"b200-8x", CollectiveKind::all_gather, 8, 900, 0.6735, 9.1828, 23.1049, 7},
    {"b200-8x", CollectiveKind::reduce_scatter, 4, 900, 0.6731, 8.0325, 25.5604, 3},
    {"b200-8x", CollectiveKind::all_to_all, 8, 900, 0.5968, 7.3039, 0, 7},
    {"a100-pcie", CollectiveKind::all_reduce, 8, 30, 0.4176, 8.98, 0, 14},
    {"a100-pcie", CollectiveKind::all_gather, 8, 30, 0.4497, 4.83, 0, 7},
    {"a100-pcie", CollectiveKind::reduce_scatter, 8, 30, 0.3688, 15.64, 0, 7},
    {"a100-pcie", CollectiveKind::all_to_all, 8, 30, 0.2754, 30.04, 0, 7},
    {"a100-pcie", CollectiveKind::all_reduce, 4, 30, 0.6924, 3.45, 0, 6},
    {"a100-pcie", CollectiveKind::all_gather, 4, 30, 0.6915, 8.93, 0, 3},
    {"a100-pcie", CollectiveKind::all_reduce, 2, 30, 0.6965, 15.51, 0, 2},
    {"a100-pcie", CollectiveKind::reduce_scatter, 2, 30, 0.6419, 131.3, 0, 1},
    {"a100-pcie", CollectiveKind::all_to_all, 2, 30, 0.6969, 24.07, 0, 1},
};

constexpr CollectiveKind kAll[] = {CollectiveKind::all_reduce,     CollectiveKind::all_gather,
                                   CollectiveKind::reduce_scatter, CollectiveKind::all_to_all,
                                   CollectiveKind::broadcast,      CollectiveKind::reduce,
                                   CollectiveKind::shift};

TEST(LinkTimes, FollowTheMeasuredLines) {
  for (const MeasuredLine& line : kLines) {
    const Hardware hardware = load_hardware(line.profile);
    for (const double bytes : {0.0, 1e3, 1e6, 1e9}) {
      const double seconds = collective_seconds(hardware, line.kind, {line.ranks, 1}, bytes);
      EXPECT_NEAR(seconds / line.seconds(bytes), 1, 1e-3) << line.profile << " " << name_of(line.kind) << " " << bytes;
    }
  }
}

// Negative control: the line of another group size is far away.
TEST(LinkTimes, DependOnTheGroupSize) {
  const Hardware hardware = load_hardware("a100-pcie");
  const double four = collective_seconds(hardware, CollectiveKind::all_reduce, {4, 1}, 1e9);
  const double eight = collective_seconds(hardware, CollectiveKind::all_reduce, {8, 1}, 1e9);
  EXPECT_GT(eight / four, 1.5);
  // A group of 3 ranks uses the entry for 4.
  const double three = collective_seconds(hardware, CollectiveKind::all_reduce, {3, 1}, 1e9);
  EXPECT_NEAR(three, four, 1e-4);
}

TEST(LinkTimes, OneRankAndLocalKindsTakeNoTime) {
  const Hardware hardware = load_hardware("b200-8x");
  for (const CollectiveKind kind : kAll) EXPECT_EQ(collective_seconds(hardware, kind, {1, 1}, 1e9), 0);
  for (const CollectiveKind kind : {CollectiveKind::slice, CollectiveKind::pad, CollectiveKind::mask_replicas,
                                    CollectiveKind::relabel}) {
    EXPECT_EQ(collective_seconds(hardware, kind, {8, 1}, 1e9), 0);
  }
}

TEST(LinkTimes, MoreBytesOrRanksAreNeverFaster) {
  for (const std::string& name : shipped_hardware()) {
    const Hardware hardware = load_hardware(name);
    for (const CollectiveKind kind : kAll) {
      for (const GroupOnHosts group : {GroupOnHosts{2, 1}, {8, 1}, {2, 2}, {16, 2}, {9, 2}, {1024, 128}, {100, 100}}) {
        double before = -1;
        for (const double bytes : {0.0, 1.0, 1e3, 1e6, 1e9, 1e12}) {
          const double now = collective_seconds(hardware, kind, group, bytes);
          ASSERT_GT(now, before) << name << " " << name_of(kind) << " " << group.ranks << " " << bytes;
          before = now;
        }
      }
      if (kind == CollectiveKind::shift) continue;
      double before = 0;
      for (const int64_t hosts : {1, 2, 3, 4, 16, 100}) {
        const double now = collective_seconds(hardware, kind, {8 * hosts, hosts}, 0);
        ASSERT_GT(now, before) << name << " " << name_of(kind) << " " << hosts;
        before = now;
      }
    }
  }
}

// The profile of the PCIe machine has rates of pairs of devices, so that larger groups on a host are slower than pairs.
TEST(LinkTimes, MoreHostsAreNeverFasterForTheSameGroup) {
  for (const std::string& name : shipped_hardware()) {
    if (name == "a100-pcie") continue;
    const Hardware hardware = load_hardware(name);
    for (const CollectiveKind kind : kAll) {
      for (const int64_t ranks : {2, 4, 8}) {
        for (const double bytes : {0.0, 1e4, 1e8}) {
          double before = 0;
          for (int64_t hosts = 1; hosts <= ranks; hosts *= 2) {
            const double now = collective_seconds(hardware, kind, {ranks, hosts}, bytes);
            EXPECT_GE(now, before) << name << " " << name_of(kind) << " " << ranks << " " << hosts << " " << bytes;
            before = now;
          }
        }
      }
    }
  }
}

TEST(LinkTimes, ARingOverHostsFollowsItsFormula) {
  const Hardware hardware = load_hardware("b200-8x");
  const CollectiveTable& inner = hardware.same_host.all_gather.front();
  const CollectiveTable& outer = hardware.between_hosts.all_gather.front();
  const double bytes = 1e9;
  // 16 ranks on 2 hosts: 14 steps inside and 1 across. The 8 adapters of a host together carry 8 x 40 GB/s.
  const double rate = std::min(900e9 * inner.share, 8 * 50e9 * outer.share);
  EXPECT_NEAR(collective_seconds(hardware, CollectiveKind::all_gather, {16, 2}, bytes),
              outer.latency_seconds + 14 * inner.step_seconds + outer.step_seconds + bytes / rate, 1e-12);
  // One rank per host uses its own adapter only, as does every data-parallel group if tensor parallelism fills a host.
  EXPECT_NEAR(collective_seconds(hardware, CollectiveKind::all_gather, {2, 2}, bytes),
              outer.latency_seconds + outer.step_seconds + bytes / (50e9 * outer.share), 1e-12);
}

TEST(LinkTimes, AllToAllOverHostsIsBoundByTheAdapter) {
  const Hardware hardware = load_hardware("h100-8x");
  const CollectiveTable& inner = hardware.same_host.all_to_all.front();
  const CollectiveTable& outer = hardware.between_hosts.all_to_all.front();
  // 8 of the 15 peers are on the other host.
  EXPECT_NEAR(collective_seconds(hardware, CollectiveKind::all_to_all, {16, 2}, 1.5e9),
              outer.latency_seconds + 7 * inner.step_seconds + 8 * outer.step_seconds + 0.8e9 / (50e9 * outer.share),
              1e-12);
}

// Sums on CPUs go directly to the owners of chunks. Of four ranks on two hosts, a rank sends two thirds of its bytes to
// the other host. On other devices a ring crosses to the other host once, over the adapters of all devices of a host.
TEST(LinkTimes, SumsOnCpusAreDirect) {
  Hardware hardware = load_hardware("this-cpu");
  const double bytes = 1e9, rate = hardware.between_hosts.bytes_per_s * hardware.between_hosts.all_reduce[0].share;
  const double latency = 100e-6 + 1 * 10e-6 + 2 * 50e-6;
  const auto seconds = [&] { return collective_seconds(hardware, CollectiveKind::all_reduce, {4, 2}, bytes); };
  EXPECT_NEAR(seconds(), latency + bytes * 2 / 3 / rate, 1e-9);
  hardware.device.communication_uses_compute = false;
  EXPECT_GE(seconds(), bytes / (2 * rate));
  EXPECT_LE(seconds(), bytes / (2 * rate) + 2 * latency);  // the latencies of a ring within hosts and of one between
}

TEST(LinkTimes, ASumByTreeFollowsItsFormula) {
  constexpr CollectiveKind kTree = CollectiveKind::all_reduce_by_tree;
  const Hardware hardware = load_hardware("b200-8x");
  const auto rate = [](const LinkTable& link) {
    return link.bytes_per_s * link.message.share / (link.message.bidirectional ? 2 : 1);
  };
  const double inside = hardware.same_host.message.latency_seconds,
               across = hardware.between_hosts.message.latency_seconds;
  const double slowest = std::min(rate(hardware.same_host), rate(hardware.between_hosts));
  const double memory = hardware.memory.bytes_per_s * hardware.memory.share, bytes = 1e6;
  // 16 ranks on 2 hosts: 2 levels up and 2 down, of which one each crosses. The leader receives 15 summands.
  EXPECT_NEAR(collective_seconds(hardware, kTree, {16, 2}, bytes),
              2 * inside + 2 * across + (15 + 6) * bytes / slowest + 16 * bytes / memory, 1e-12);
  // 256 ranks on 32 hosts are 4 blocks of 64, each on 8 hosts. Up and down a block, 2 of 3 levels cross. The chain of 4
  // leaders and the level of the tree over them cross.
  EXPECT_NEAR(collective_seconds(hardware, kTree, {256, 32}, bytes),
              2 * inside + (4 + 3 + 1) * across + (63 + 3 + 3 * 4) * bytes / slowest + 256 * bytes / memory, 1e-12);
}

// A sum by tree is the faster one for few numbers over many ranks, and the slower one for a large tensor.
TEST(LinkTimes, ASumByTreeIsForFewNumbers) {
  const Hardware hardware = load_hardware("this-cpu");
  const auto seconds = [&](CollectiveKind kind, double bytes) {
    return collective_seconds(hardware, kind, {256, 32}, bytes);
  };
  EXPECT_LT(4 * seconds(CollectiveKind::all_reduce_by_tree, 2048), seconds(CollectiveKind::all_reduce, 2 * 2048));
  EXPECT_GT(seconds(CollectiveKind::all_reduce_by_tree, 1e8), 4 * seconds(CollectiveKind::all_reduce, 2e8));
  double before = 0;
  for (const int64_t ranks : {2, 9, 16, 17, 64, 65, 200, 1024, 4096}) {
    const double now = collective_seconds(hardware, CollectiveKind::all_reduce_by_tree, {ranks, (ranks + 7) / 8}, 2048);
    EXPECT_GT(now, before) << ranks;
    before = now;
  }
}

TEST(LinkTimes, AMessageGetsHalfOfABidirectionalShare) {
  const Hardware hardware = load_hardware("b200-8x");
  EXPECT_NEAR(message_seconds(hardware, true, 1e9), 16.0668e-6 + 1e9 / (900 * kGiB * 1.4517 / 2), 1e-6);
  EXPECT_EQ(message_seconds(hardware, true, 0), hardware.same_host.message.latency_seconds);
  EXPECT_GT(message_seconds(hardware, false, 1e9), message_seconds(hardware, true, 1e9));
  EXPECT_EQ(collective_seconds(hardware, CollectiveKind::shift, {16, 2}, 1e6), message_seconds(hardware, false, 1e6));
  EXPECT_EQ(collective_seconds(hardware, CollectiveKind::shift, {8, 1}, 1e6), message_seconds(hardware, true, 1e6));
}

TEST(LinkTimes, RefuseImpossibleGroups) {
  const Hardware hardware = load_hardware("b200-8x");
  EXPECT_THROW(collective_seconds(hardware, CollectiveKind::all_reduce, {2, 3}, 1), LogicError);
  EXPECT_THROW(collective_seconds(hardware, CollectiveKind::all_reduce, {2, 0}, 1), LogicError);
  EXPECT_THROW(collective_seconds(hardware, CollectiveKind::all_reduce, {2, 1}, -1), LogicError);
  EXPECT_THROW(message_seconds(hardware, true, NAN), LogicError);
}

}  // namespace
}  // namespace orthant::link_times_test
