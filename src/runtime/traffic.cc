// Adds up the communication of a plan by axes and collective, and compares it with the counters of Comm.
#include "runtime/traffic.h"

#include "base/text.h"

#include <fmt/format.h>

namespace orthant {
namespace {

Traffic entry_of(const TrafficTable& table, const TrafficTable::key_type& key) {
  const auto entry = table.find(key);
  return entry == table.end() ? Traffic{} : entry->second;
}

std::string calls_of(const Traffic& traffic) { return counted(traffic.calls, "call"); }

}  // namespace

TrafficTable planned_traffic_table(const Plan& plan, int rank) {
  TrafficTable planned;
  for (const CommunicationEntry& entry : plan.communication) {
    Traffic& sum = planned[{entry.axis, entry.collective}];
    sum.calls += plan.calls_of(entry, rank);
    sum.bytes += {plan.bytes_of(entry, rank), plan.received_by(entry, rank)};
  }
  return planned;
}

TrafficTable traffic_since(const TrafficTable& before, const TrafficTable& after) {
  TrafficTable since;
  for (const auto& [key, traffic] : after) {
    const Traffic earlier = entry_of(before, key);
    since[key] = {traffic.calls - earlier.calls, traffic.bytes - earlier.bytes};
  }
  return since;
}

std::string traffic_difference(const TrafficTable& planned, const TrafficTable& sent) {
  TrafficTable keys = planned;
  keys.insert(sent.begin(), sent.end());
  for (const auto& [key, ignored] : keys) {
    const Traffic want = entry_of(planned, key), have = entry_of(sent, key);
    if (have == want) continue;
    const auto& [axes, collective] = key;
    return fmt::format("sends {} and receives {} bytes in {} of {} over {}, but the plan states {} and {} bytes in {}",
                       have.bytes.sent, have.bytes.received, calls_of(have), collective, axes, want.bytes.sent,
                       want.bytes.received, calls_of(want));
  }
  return "";
}

}  // namespace orthant
