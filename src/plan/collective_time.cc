#include "plan/collective_time.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace orthant {

double ranks_per_core(const Hardware& hardware, const Mesh& mesh) {
  const DeviceTable& device = hardware.device;
  if (device.shared_cores == 0) return 1;
  const auto ranks = static_cast<double>(std::min<int64_t>(mesh.size(), device.per_host));
  return std::max(1.0, ranks / static_cast<double>(device.shared_cores));
}

double software_seconds(const Hardware& hardware, const Mesh& mesh) {
  return hardware.step.call_seconds + (ranks_per_core(hardware, mesh) > 1 ? hardware.step.shared_call_seconds : 0);
}

namespace {

// The local ranks, from 0 on each host, that the first ranks of the groups over the axes have.
std::vector<int64_t> local_first_ranks(const Mesh& mesh, int64_t per_host, const Axes& axes) {
  std::vector<char> is_known(static_cast<size_t>(std::min<int64_t>(mesh.size(), per_host)));
  std::vector<int64_t> local_ranks = {0};
  is_known[0] = 1;
  int64_t distance = 1;  // between ranks whose coordinates along the axis differ by 1
  for (const Axis& axis : mesh.axes) {
    const bool is_of_group = std::ranges::find(axes, axis.name) != axes.end();
    // Local ranks repeat after per_host coordinates at most.
    const int64_t coords = is_of_group || distance % per_host == 0 ? 1 : std::min<int64_t>(axis.size, per_host);
    const size_t before = local_ranks.size();
    for (int64_t coord = 1; coord < coords && local_ranks.size() < is_known.size(); ++coord) {
      for (size_t i = 0; i < before; ++i) {
        const int64_t local_rank = (local_ranks[i] + coord * distance) % per_host;
        if (std::exchange(is_known[static_cast<size_t>(local_rank)], 1) == 0) local_ranks.push_back(local_rank);
      }
    }
    distance *= axis.size;
  }
  return local_ranks;
}

}  // namespace

GroupOnHosts group_on_hosts(const Mesh& mesh, const Hardware& hardware, const Axes& axes) {
  const GroupPositions positions(mesh, axes);
  const int64_t per_host = hardware.device.per_host;
  const int ranks = positions.size();
  if (ranks == 1) return {.ranks = 1, .hosts = 1};
  if (mesh.size() <= per_host) return {.ranks = ranks, .hosts = 1};
  const std::vector<int64_t> local_ranks = local_first_ranks(mesh, per_host, axes);
  // The distance between neighbors is nowhere less than that of the first two. If it is the same everywhere, the hosts
  // are counted without a look at each rank.
  const int64_t distance = positions.rank_at(1);
  if (positions.rank_at(ranks - 1) == (ranks - 1) * distance) {
    const int64_t last = std::ranges::max(local_ranks) + (ranks - 1) * distance;
    return {.ranks = ranks, .hosts = distance < per_host ? last / per_host + 1 : ranks};
  }
  int64_t most = 1;
  for (const int64_t local_rank : local_ranks) {
    int64_t hosts = 1;
    for (int at = 1; at < ranks; ++at) {
      const auto host = [&](int position) { return (local_rank + positions.rank_at(position)) / per_host; };
      hosts += host(at) != host(at - 1) ? 1 : 0;
    }
    most = std::max(most, hosts);
  }
  return {.ranks = ranks, .hosts = most};
}

bool are_on_same_hosts(const Mesh& mesh, const Hardware& hardware, const std::string& axis, int a, int b) {
  const int64_t per_host = hardware.device.per_host;
  const int64_t first = mesh.rank_at(0, axis, std::min(a, b)), last = mesh.rank_at(0, axis, std::max(a, b));
  return std::ranges::all_of(local_first_ranks(mesh, per_host, {axis}), [&](int64_t local_rank) {
    return (local_rank + first) / per_host == (local_rank + last) / per_host;
  });
}

namespace {

// The bytes by which a collective is timed.
double timed_bytes(CollectiveKind kind, const Hardware& hardware, int64_t ranks, const Moved& bytes) {
  if (kind == CollectiveKind::reduce_in_chunks && ranks > 2) return static_cast<double>(bytes.sent);
  const bool is_sum_into_root = kind == CollectiveKind::reduce || kind == CollectiveKind::reduce_in_chunks;
  if (is_sum_into_root && !hardware.device.communication_uses_compute) {
    return static_cast<double>(std::max(bytes.sent, bytes.received / (ranks - 1)));
  }
  return static_cast<double>(bytes.larger());
}

}  // namespace

double collective_seconds(const Mesh& mesh, const Hardware& hardware, CollectiveKind kind, const Axes& axes,
                          int64_t calls, const Moved& bytes, Waiting waiting) {
  if (calls == 0 || mesh.group_size(axes) == 1) return 0;
  const auto count = static_cast<double>(calls);
  const double timed = timed_bytes(kind, hardware, mesh.group_size(axes), bytes);
  double each = collective_seconds(hardware, kind, group_on_hosts(mesh, hardware, axes), timed / count);
  if (waiting == Waiting::alone) each += software_seconds(hardware, mesh);
  return count * each;
}

}  // namespace orthant
