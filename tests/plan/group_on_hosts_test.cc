// The hosts of a group of ranks, compared with a list of each rank's host.
#include <gtest/gtest.h>

#include <set>

#include "plan/collective_time.h"

namespace orthant::group_on_hosts_test {
namespace {

TEST(GroupOnHosts, AreThoseOfItsRanks) {
  const Mesh mesh({{"column", 2}, {"row", 3}, {"ulysses", 1}, {"ring", 2}, {"data", 3}, {"pipeline", 2}});
  const Axes all = all_axes(mesh);
  Hardware hardware = load_hardware("h100-8x");
  int several_hosts = 0;
  for (const int per_host : {1, 2, 3, 4, 5, 8, 24, 100}) {
    hardware.device.per_host = per_host;
    for (unsigned subset = 0; subset < 1u << all.size(); ++subset) {
      Axes axes;
      for (size_t i = 0; i < all.size(); ++i) {
        if ((subset >> i & 1) != 0) axes.push_back(all[i]);
      }
      for (int rank = 0; rank < mesh.size(); ++rank) {
        std::set<int> hosts;
        for (const int member : mesh.group(rank, axes)) hosts.insert(member / per_host);
        const GroupOnHosts found = group_on_hosts(mesh, hardware, rank, axes);
        ASSERT_EQ(found.ranks, mesh.group_size(axes)) << mesh.joined_name(axes);
        ASSERT_EQ(found.hosts, std::ssize(hosts)) << mesh.joined_name(axes) << ", rank " << rank << ", " << per_host;
        several_hosts += hosts.size() > 1 ? 1 : 0;
      }
    }
  }
  EXPECT_GT(several_hosts, 1000);
}

}  // namespace
}  // namespace orthant::group_on_hosts_test
