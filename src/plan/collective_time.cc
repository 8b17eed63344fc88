#include "plan/collective_time.h"

#include <algorithm>

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

GroupOnHosts group_on_hosts(const Mesh& mesh, const Hardware& hardware, int rank, const Axes& axes) {
  const GroupPositions positions(mesh, axes);
  const int first = rank - positions.rank_at(positions.of(rank)), ranks = positions.size();
  const auto host = [&](int position) { return (first + positions.rank_at(position)) / hardware.device.per_host; };
  if (ranks == 1) return {.ranks = 1, .hosts = 1};
  // The distance between neighbors is nowhere less than that of the first two. If it is the same everywhere, the hosts
  // are counted without a look at each rank.
  const int distance = positions.rank_at(1);
  if (positions.rank_at(ranks - 1) == (ranks - 1) * distance) {
    return {.ranks = ranks, .hosts = distance < hardware.device.per_host ? host(ranks - 1) - host(0) + 1 : ranks};
  }
  int64_t hosts = 1;
  for (int position = 1; position < ranks; ++position) hosts += host(position) != host(position - 1) ? 1 : 0;
  return {.ranks = ranks, .hosts = hosts};
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

double collective_seconds(const Mesh& mesh, const Hardware& hardware, int rank, CollectiveKind kind, const Axes& axes,
                          int64_t calls, const Moved& bytes, Waiting waiting) {
  if (calls == 0 || mesh.group_size(axes) == 1) return 0;
  const auto count = static_cast<double>(calls);
  const double timed = timed_bytes(kind, hardware, mesh.group_size(axes), bytes);
  double each = collective_seconds(hardware, kind, group_on_hosts(mesh, hardware, rank, axes), timed / count);
  if (waiting == Waiting::alone) each += software_seconds(hardware, mesh);
  return count * each;
}

}  // namespace orthant
