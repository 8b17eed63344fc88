// Times of collectives and messages. With n ranks on h hosts, r = ceil(n / h) ranks of a host, and b bytes sent by one
// rank:
//   all_reduce, all_gather, reduce_scatter  A ring that visits all ranks of a host before the next host. An element
//       makes n - 1 steps (all_reduce: twice), of which h - 1 cross to another host. The bytes flow at the rate of the
//       slowest link: min(inner rate, r * outer rate), because each of the r devices of a host carries 1 / r of the
//       ring's bytes over its own link to the next host (NCCL opens a ring per network adapter).
//       Sums on CPUs (communication_uses_compute) are no rings: every rank sends the chunks directly to their owners,
//       as in an all_to_all (comm/collectives.h).
//   all_to_all  b * (n - r) / (n - 1) bytes cross hosts over the device's own link, at the same time as the other bytes
//       inside the host. The slower of the two counts. A step is the message to one peer.
//   broadcast, reduce  A chain of n - 1 messages, of which h - 1 cross, pipelined: the bytes flow at the slowest rate.
//   all_reduce_by_tree  The messages one after another on the longest path (mesh/sum_tree.h). A tree of k ranks has
//       ceil(log4 k) levels, of which ceil(log4(hosts)) cross. It moves k - 1 summands into its leader, and later 3
//       totals on each level. A chain and a tree over the leaders are in between. All n summands are added one after
//       another, at the rate of the memory.
//   shift  One message; between hosts if h > 1.
// Time = latency + steps inside * step time inside + steps across * step time across + bytes / rate. The latency is
// that of the links between hosts if h > 1. Source of the ring's cost: P. Patarasuk and X. Yuan, Bandwidth optimal
// all-reduce algorithms for clusters of workstations, 2009.
#include <algorithm>

#include "base/errors.h"
#include "hardware/times.h"
#include "mesh/sum_tree.h"

namespace orthant {
namespace {

const std::vector<CollectiveTable>& entries_of(const LinkTable& link, CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::all_reduce: return link.all_reduce;
    case CollectiveKind::all_gather: return link.all_gather;
    case CollectiveKind::reduce_scatter: return link.reduce_scatter;
    default: return link.all_to_all;
  }
}

// Returns the entry of the smallest group that has at least this number of ranks, else the last entry.
const CollectiveTable& find_entry(const LinkTable& link, CollectiveKind kind, int64_t ranks) {
  const auto& entries = entries_of(link, kind);
  ORTHANT_CHECK(!entries.empty(), name_of(kind));
  const auto found = std::ranges::find_if(
      entries, [&](const CollectiveTable& entry) { return entry.ranks == 0 || entry.ranks >= ranks; });
  return found == entries.end() ? entries.back() : *found;
}

double message_rate(const LinkTable& link) {
  return link.bytes_per_s * link.message.share / (link.message.bidirectional ? 2 : 1);
}

struct Steps {
  double inside, across;  // steps of a ring inside hosts and between hosts
};

double ring_seconds(const Hardware& hardware, CollectiveKind kind, int64_t ranks, int64_t ranks_of_host, Steps steps,
                    double bytes) {
  const CollectiveTable& inner = find_entry(hardware.same_host, kind, ranks_of_host);
  const double inner_rate = hardware.same_host.bytes_per_s * inner.share;
  if (steps.across == 0) return inner.latency_seconds + steps.inside * inner.step_seconds + bytes / inner_rate;
  const CollectiveTable& outer = find_entry(hardware.between_hosts, kind, ranks);
  const double outer_rate = hardware.between_hosts.bytes_per_s * outer.share * static_cast<double>(ranks_of_host);
  const double rate = ranks_of_host == 1 ? outer_rate : std::min(inner_rate, outer_rate);
  return outer.latency_seconds + steps.inside * inner.step_seconds + steps.across * outer.step_seconds + bytes / rate;
}

double direct_seconds(const Hardware& hardware, CollectiveKind kind, int64_t ranks, int64_t ranks_of_host,
                      double bytes) {
  const CollectiveTable& inner = find_entry(hardware.same_host, kind, ranks_of_host);
  const double peers_inside = static_cast<double>(ranks_of_host - 1), peers = static_cast<double>(ranks - 1);
  const double inside = bytes * peers_inside / peers / (hardware.same_host.bytes_per_s * inner.share);
  if (ranks == ranks_of_host) return inner.latency_seconds + peers * inner.step_seconds + inside;
  const CollectiveTable& outer = find_entry(hardware.between_hosts, kind, ranks);
  const double peers_across = peers - peers_inside;
  const double across = bytes * peers_across / peers / (hardware.between_hosts.bytes_per_s * outer.share);
  return outer.latency_seconds + peers_inside * inner.step_seconds + peers_across * outer.step_seconds +
         std::max(inside, across);
}

double chain_seconds(const Hardware& hardware, Steps steps, double bytes) {
  const LinkTable &inner = hardware.same_host, &outer = hardware.between_hosts;
  double rate = steps.inside > 0 ? message_rate(inner) : message_rate(outer);
  if (steps.across > 0) rate = std::min(rate, message_rate(outer));
  return steps.inside * inner.message.latency_seconds + steps.across * outer.message.latency_seconds + bytes / rate;
}

// Chunks are summed by their owners, as in a reduce-scatter, and then come to the root from all other ranks at once.
// `bytes` is the size of the tensor.
double chunked_sum_seconds(const Hardware& hardware, int64_t ranks, int64_t ranks_of_host, double bytes) {
  const double moved = bytes * static_cast<double>(ranks - 1) / static_cast<double>(ranks);
  const double inside = moved * static_cast<double>(ranks_of_host - 1) / static_cast<double>(ranks - 1);
  const bool same_host = ranks == ranks_of_host;
  const LinkTable& link = same_host ? hardware.same_host : hardware.between_hosts;
  double seconds = inside / message_rate(hardware.same_host);
  if (!same_host) seconds = std::max(seconds, (moved - inside) / message_rate(hardware.between_hosts));
  return direct_seconds(hardware, CollectiveKind::reduce_scatter, ranks, ranks_of_host, moved) +
         link.message.latency_seconds + seconds;
}

// `bytes` is the size of the tensor.
double tree_seconds(const Hardware& hardware, int64_t ranks, int64_t hosts, int64_t ranks_of_host, double bytes) {
  const int64_t block = std::min<int64_t>(ranks, kTreeBlock), blocks = (ranks + block - 1) / block;
  const int64_t hosts_of_block = hosts == 1 ? 1 : (block + ranks_of_host - 1) / ranks_of_host;
  const int64_t hosts_of_leaders = std::min(hosts, blocks);
  const double up = tree_levels(block), chain = static_cast<double>(blocks - 1), down = tree_levels(blocks) + up;
  const double across =
      2 * tree_levels(hosts_of_block) + static_cast<double>(hosts_of_leaders - 1) + tree_levels(hosts_of_leaders);
  const double tensors = static_cast<double>(block - 1) + chain + 3 * down;
  return chain_seconds(hardware, {up + chain + down - across, across}, tensors * bytes) +
         static_cast<double>(ranks) * bytes / (hardware.memory.bytes_per_s * hardware.memory.share);
}

}  // namespace

double collective_seconds(const Hardware& hardware, CollectiveKind kind, const GroupOnHosts& group, double bytes_sent) {
  const auto [ranks, hosts] = group;
  ORTHANT_CHECK(hosts >= 1 && hosts <= ranks && bytes_sent >= 0, ranks, hosts, bytes_sent);
  if (ranks == 1 || !communicates(kind)) return 0.0;
  const int64_t ranks_of_host = (ranks + hosts - 1) / hosts;
  const Steps steps = {static_cast<double>(ranks - hosts), static_cast<double>(hosts - 1)};
  const bool sums = kind == CollectiveKind::all_reduce || kind == CollectiveKind::reduce_scatter;
  if (sums && hardware.device.communication_uses_compute) {
    return direct_seconds(hardware, kind, ranks, ranks_of_host, bytes_sent);
  }
  switch (kind) {
    case CollectiveKind::all_reduce:
      return ring_seconds(hardware, kind, ranks, ranks_of_host, {2 * steps.inside, 2 * steps.across}, bytes_sent);
    case CollectiveKind::all_reduce_by_tree:
      return tree_seconds(hardware, ranks, hosts, ranks_of_host, bytes_sent);
    case CollectiveKind::all_to_all: return direct_seconds(hardware, kind, ranks, ranks_of_host, bytes_sent);
    case CollectiveKind::reduce_in_chunks:
      if (ranks > 2) return chunked_sum_seconds(hardware, ranks, ranks_of_host, bytes_sent);
      return chain_seconds(hardware, steps, bytes_sent);
    case CollectiveKind::broadcast:
    case CollectiveKind::reduce: return chain_seconds(hardware, steps, bytes_sent);
    case CollectiveKind::shift: return message_seconds(hardware, hosts == 1, bytes_sent);
    default: return ring_seconds(hardware, kind, ranks, ranks_of_host, steps, bytes_sent);
  }
}

double message_seconds(const Hardware& hardware, bool same_host, double bytes) {
  ORTHANT_CHECK(bytes >= 0, bytes);
  const LinkTable& link = same_host ? hardware.same_host : hardware.between_hosts;
  return link.message.latency_seconds + bytes / message_rate(link);
}

}  // namespace orthant
