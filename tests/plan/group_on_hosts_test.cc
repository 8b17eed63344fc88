// The hosts of groups of ranks, compared with a list of each rank's host.
#include <gtest/gtest.h>

#include <set>

#include "plan/collective_time.h"

namespace orthant::group_on_hosts_test {
namespace {

Mesh small_mesh() {
  return Mesh({{"column", 2}, {"row", 3}, {"ulysses", 1}, {"ring", 2}, {"data", 3}, {"pipeline", 2}});
}

// Control: the group of rank 0 is often not the one on most hosts.
TEST(GroupOnHosts, AreThoseOfTheGroupWithMost) {
  const Mesh mesh = small_mesh();
  const Axes all = all_axes(mesh);
  Hardware hardware = load_hardware("h100-8x");
  int several_hosts = 0, more_than_first = 0;
  for (const int per_host : {1, 2, 3, 4, 5, 8, 24, 100}) {
    hardware.device.per_host = per_host;
    for (unsigned subset = 0; subset < 1u << all.size(); ++subset) {
      Axes axes;
      for (size_t i = 0; i < all.size(); ++i) {
        if ((subset >> i & 1) != 0) axes.push_back(all[i]);
      }
      int64_t most = 0, of_first = 0;
      for (int rank = 0; rank < mesh.size(); ++rank) {
        std::set<int> hosts;
        for (const int member : mesh.group(rank, axes)) hosts.insert(member / per_host);
        most = std::max(most, std::ssize(hosts));
        if (rank == 0) of_first = most;
      }
      const GroupOnHosts found = group_on_hosts(mesh, hardware, axes);
      ASSERT_EQ(found.ranks, mesh.group_size(axes)) << mesh.joined_name(axes);
      ASSERT_EQ(found.hosts, most) << mesh.joined_name(axes) << ", " << per_host;
      several_hosts += most > 1 ? 1 : 0;
      more_than_first += most > of_first ? 1 : 0;
    }
  }
  EXPECT_GT(several_hosts, 200);
  EXPECT_GT(more_than_first, 50);
}

TEST(SameHosts, AreThoseOfEachPairOfNeighbors) {
  const Mesh mesh = small_mesh();
  Hardware hardware = load_hardware("h100-8x");
  int same = 0, different = 0;
  for (const int per_host : {1, 2, 3, 4, 5, 8, 24, 40, 100}) {
    hardware.device.per_host = per_host;
    for (const auto& [axis, size] : mesh.axes) {
      for (int a = 0; a < size; ++a) {
        for (int b = 0; b < size; ++b) {
          bool expected = true;
          for (int rank = 0; rank < mesh.size(); ++rank) {
            if (mesh.coord(rank, axis) != a) continue;
            expected = expected && rank / per_host == mesh.rank_at(rank, axis, b) / per_host;
          }
          EXPECT_EQ(are_on_same_hosts(mesh, hardware, axis, a, b), expected)
              << axis << " " << a << " " << b << ", " << per_host;
          if (a != b) ++(expected ? same : different);
        }
      }
    }
  }
  EXPECT_GT(same, 20);
  EXPECT_GT(different, 50);
}

}  // namespace
}  // namespace orthant::group_on_hosts_test
