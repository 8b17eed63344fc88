// Compares the hosts and transports of all ranks, then opens UCX or Gloo.
#include "comm/open_engine.h"

#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <vector>

#include "base/errors.h"
#include "base/json.h"
#include "base/terminal_text.h"
#include "base/text.h"
#include "comm/shared_memory.h"
#include "launch/process.h"
#include "launch/roll_call.h"
#include "launch/spawn.h"

namespace orthant {
namespace {

constexpr auto kReplaced = nlohmann::json::error_handler_t::replace;  // bytes that are not UTF-8

// A key that is equal for ranks that share memory: same machine, same boot, same IPC namespace.
std::string host_key() {
  char ipc[64] = {};
  (void)!readlink("/proc/self/ns/ipc", ipc, sizeof ipc - 1);
  return boot_id() + ipc;
}

// The introduction of a rank: its host, why it has no UCX (empty if it has), and its host's free shared memory before
// any rank has used some.
std::string introduction(const CommOptions& options) {
  const std::string problem = options.transport == "gloo" ? "its transport is gloo" : ucx_problem();
  return nlohmann::json({host_key(), problem, free_shared_memory()}).dump(-1, ' ', false, kReplaced);
}

// Rank 0 computes it from the introductions of all ranks. Its size grows with the number of hosts.
std::string summary_of(const std::vector<std::string>& introductions) {
  nlohmann::json hosts = nlohmann::json::object(), without_ucx;
  for (size_t rank = 0; rank < introductions.size(); ++rank) {
    const auto fields = parse_json(introductions[rank], fmt::format("introduction of rank {}", rank));
    if (without_ucx.is_null() && fields.at(1) != "") without_ucx = {rank, fields.at(1)};
    auto& host = hosts[fields.at(0).get<std::string>()];
    if (host.is_null()) host = {{"free_bytes", fields.at(2)}, {"ranks", nlohmann::json::array()}};
    host["free_bytes"] = std::min(host["free_bytes"].get<int64_t>(), fields.at(2).get<int64_t>());
    auto& ranges = host["ranks"];  // pairs of the first rank and the one after the last
    if (ranges.empty() || ranges.back()[1] != rank) ranges.push_back({rank, rank});
    ranges.back()[1] = rank + 1;
  }
  return nlohmann::json({{"without_ucx", without_ucx}, {"hosts", hosts}}).dump(-1, ' ', false, kReplaced);
}

// The part of the summary that concerns this rank.
struct Members {
  std::string without_ucx;  // "rank 3 cannot use UCX: REASON" for the first such rank; empty if there is none
  std::vector<bool> local;  // for each rank, whether it shares this rank's memory
  int64_t free_bytes = 0;   // of shared memory on this host
};

Members read_summary(const std::string& text, int world_size) {
  constexpr size_t kMostBytes = 1000;
  Members members{.without_ucx = {}, .local = std::vector<bool>(static_cast<size_t>(world_size))};
  const auto summary = parse_json(text, "introductions of the ranks");
  if (const auto& rank = summary.at("without_ucx"); !rank.is_null()) {
    members.without_ucx = fmt::format("rank {} cannot use UCX: {}", rank.at(0).get<int>(),
                                      escape_for_terminal(rank.at(1).get<std::string>(), kMostBytes));
  }
  const auto& host = summary.at("hosts").at(host_key());
  members.free_bytes = host.at("free_bytes");
  for (const auto& range : host.at("ranks")) {
    for (int rank = range.at(0); rank < range.at(1); ++rank) members.local.at(static_cast<size_t>(rank)) = true;
  }
  return members;
}

// Posts this rank's introduction, and returns what concerns it in those of all ranks.
Members exchange_introductions(const RollCall& call, const CommOptions& options) {
  try {
    return read_summary(call_roll(call, introduction(options), summary_of), call.world_size);
  } catch (const std::logic_error& error) {  // of nlohmann::json or a vector
    throw CommError(fmt::format("rank {}: the {} holds damaged introductions of ranks: {}", call.rank,
                                call.store.name(), error.what()));
  }
}

}  // namespace

std::unique_ptr<Engine> open_engine(const Rendezvous& rendezvous, const Store& store, const Watch& watch,
                                    const CommOptions& options, std::function<void()> while_waiting) {
  RollCall introductions = watch.roll_call(store.under("introductions"), options.connect_timeout_s);
  introductions.missed = "finish connecting to the " + store.name();
  const Members members = exchange_introductions(introductions, options);
  if (options.transport == "ucx" && !members.without_ucx.empty()) {
    throw ConfigError(members.without_ucx + "; install it there, or set run.transport = \"auto\"");
  }
  // The transport asks for addresses on the engine's thread, so it has a connection of its own.
  const RollCall addresses = watch.roll_call(store.clone(), options.connect_timeout_s);
  const TransportOptions transport{
      .rank = rendezvous.rank,
      .world_size = rendezvous.world_size,
      .store = addresses.store,
      .wait_for_value = [addresses](const std::string& key, int rank) { return await_text(addresses, key, rank); },
      .local = members.local,
      .address = rendezvous.address,
      .interface_name = rendezvous.interface_name,
      .connect_timeout_s = options.connect_timeout_s};
  const auto local_ranks = std::count(members.local.begin(), members.local.end(), true);
  const auto open = members.without_ucx.empty() ? ucx_transport : gloo_transport;
  try {
    return std::make_unique<Engine>([&](MessageSink& sink) { return open(transport, sink); },
                                    EngineOptions{.timeout_s = options.timeout_s,
                                                  .cores_to_spare = local_ranks <= cores_of_local_ranks(local_ranks),
                                                  .while_waiting = std::move(while_waiting)});
  } catch (const ConfigError& error) {
    const std::string cause = shared_memory_problem(members.free_bytes, local_ranks);
    throw ConfigError(cause.empty() ? error.what() : fmt::format("{}. {}", cause, error.what()));
  }
}

}  // namespace orthant
