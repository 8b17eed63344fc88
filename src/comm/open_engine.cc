// Compares the hosts and transports of all ranks, then opens UCX or Gloo.
#include "comm/open_engine.h"

#include <unistd.h>

#include <algorithm>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <vector>

#include "base/descriptors.h"
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

// The introduction of a rank: its host, why it has no UCX (empty if it has), its host's free shared memory before any
// rank has used some, and its GPU.
std::string introduction(const CommOptions& options) {
  const std::string problem = options.transport == "gloo" ? "its transport is gloo" : ucx_problem();
  return nlohmann::json({host_key(), problem, free_shared_memory(), options.gpu.uuid, options.gpu.model})
      .dump(-1, ' ', false, kReplaced);
}

// The error of two ranks with one GPU, and the warning of different models; each is empty if there is none.
struct GpuFindings {
  std::string problem, warning;
};

GpuFindings compare_gpus(const std::vector<Gpu>& gpus) {
  GpuFindings found;
  std::map<std::string, size_t> rank_of;  // by UUID
  for (size_t rank = 0; rank < gpus.size(); ++rank) {
    const Gpu& gpu = gpus[rank];
    if (gpu.uuid.empty()) continue;
    if (const auto [other, fresh] = rank_of.emplace(gpu.uuid, rank); !fresh && found.problem.empty()) {
      found.problem = fmt::format(
          "ranks {} and {} use the same GPU ({}, {}), but over NCCL each rank needs a GPU of its own; start at most as "
          "many ranks on a host as it has GPUs, or set run.transport = \"gloo\" to copy tensors through host memory",
          other->second, rank, gpu.model, gpu.uuid);
    }
    if (gpu.model != gpus[0].model && found.warning.empty()) {
      found.warning =
          fmt::format("the GPUs differ: rank 0 has {}, rank {} has {}; the faster ones wait for the slower ones",
                      gpus[0].model, rank, gpu.model);
    }
  }
  return found;
}

// Rank 0 computes it from the introductions of all ranks. Its size grows with the number of hosts.
std::string summary_of(const std::vector<std::string>& introductions) {
  nlohmann::json hosts = nlohmann::json::object(), without_ucx;
  std::vector<Gpu> gpus;
  for (size_t rank = 0; rank < introductions.size(); ++rank) {
    const auto fields = parse_json(introductions[rank], fmt::format("introduction of rank {}", rank));
    if (without_ucx.is_null() && fields.at(1) != "") without_ucx = {rank, fields.at(1)};
    gpus.push_back({fields.at(3), fields.at(4)});
    auto& host = hosts[fields.at(0).get<std::string>()];
    if (host.is_null()) host = {{"free_bytes", fields.at(2)}, {"ranks", nlohmann::json::array()}};
    host["free_bytes"] = std::min(host["free_bytes"].get<int64_t>(), fields.at(2).get<int64_t>());
    auto& ranges = host["ranks"];  // pairs of the first rank and the one after the last
    if (ranges.empty() || ranges.back()[1] != rank) ranges.push_back({rank, rank});
    ranges.back()[1] = rank + 1;
  }
  const GpuFindings found = compare_gpus(gpus);
  return nlohmann::json({{"without_ucx", without_ucx},
                         {"hosts", hosts},
                         {"gpu_problem", found.problem},
                         {"gpu_warning", found.warning}})
      .dump(-1, ' ', false, kReplaced);
}

// The part of the summary that concerns this rank.
struct Members {
  std::string without_ucx;  // "rank 3 cannot use UCX: REASON" for the first such rank; empty if there is none
  std::vector<bool> local;  // for each rank, whether it shares this rank's memory
  int64_t free_bytes = 0;   // of shared memory on this host
  GpuFindings gpus;
};

Members read_summary(const std::string& text, int world_size) {
  constexpr size_t kMostBytes = 1000;
  Members members{.without_ucx = {}, .local = std::vector<bool>(static_cast<size_t>(world_size))};
  const auto summary = parse_json(text, "introductions of the ranks");
  if (const auto& rank = summary.at("without_ucx"); !rank.is_null()) {
    members.without_ucx = fmt::format("rank {} cannot use UCX: {}", rank.at(0).get<int>(),
                                      escape_for_terminal(rank.at(1).get<std::string>(), kMostBytes));
  }
  const auto text_of = [&](const char* key) {
    return escape_for_terminal(summary.at(key).get<std::string>(), kMostBytes);
  };
  members.gpus = {text_of("gpu_problem"), text_of("gpu_warning")};
  const auto& host = summary.at("hosts").at(host_key());
  members.free_bytes = host.at("free_bytes");
  for (const auto& range : host.at("ranks")) {
    for (int rank = range.at(0); rank < range.at(1); ++rank) members.local.at(static_cast<size_t>(rank)) = true;
  }
  return members;
}

// Posts this rank's introduction, and returns what concerns it in those of all ranks.
Members exchange_introductions(const RollCall& call, const CommOptions& options) {
  const auto damaged = [&](const std::exception& error) {
    return CommError(fmt::format("rank {}: the {} holds damaged introductions of ranks: {}", call.rank,
                                 call.store.name(), error.what()));
  };
  try {
    return read_summary(call_roll(call, introduction(options), summary_of), call.world_size);
  } catch (const nlohmann::json::exception& error) {
    throw damaged(error);
  } catch (const std::out_of_range& error) {  // of a vector
    throw damaged(error);
  }
}

// Requires descriptors for the transports of the ranks of this process. One transport has up to 14 before its first
// message, and up to 2 sockets for each connection. Shared memory needs none.
void require_connections(const Rendezvous& rendezvous, int connections) {
  constexpr int64_t kOfProcess = 64, kOfTransport = 16, kOfConnection = 2;
  const int ranks = rendezvous.in_process ? rendezvous.world_size : 1;
  require_descriptors(
      kOfProcess + ranks * (kOfTransport + kOfConnection * connections),
      fmt::format("{} of this process with {} each", counted(ranks, "rank"), counted(connections, "connection")));
}

}  // namespace

std::unique_ptr<Engine> open_engine(const Rendezvous& rendezvous, const Store& store, const Watch& watch,
                                    const CommOptions& options, int expected_connections,
                                    const std::function<void(const std::string&)>& warn) {
  RollCall introductions = watch.roll_call(store.under("introductions"), options.connect_timeout_s);
  introductions.missed = "finish connecting to the " + store.name();
  const Members members = exchange_introductions(introductions, options);
  if (options.transport == "ucx" && !members.without_ucx.empty()) {
    throw ConfigError(members.without_ucx + "; install it there, or set run.transport = \"auto\"");
  }
  if (!members.gpus.problem.empty()) throw ConfigError(members.gpus.problem);
  if (!members.gpus.warning.empty() && rendezvous.rank == 0) warn(members.gpus.warning);
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
      .connect_timeout_s = options.connect_timeout_s,
      .expected_connections = expected_connections};
  const bool has_sockets = !members.without_ucx.empty() || !std::ranges::all_of(members.local, std::identity());
  require_connections(rendezvous, has_sockets ? expected_connections : 0);
  const auto local_ranks = std::count(members.local.begin(), members.local.end(), true);
  const auto open = members.without_ucx.empty() ? ucx_transport : gloo_transport;
  try {
    return std::make_unique<Engine>([&](MessageSink& sink) { return open(transport, sink); },
                                    EngineOptions{.timeout_s = options.timeout_s,
                                                  .cores_to_spare = local_ranks <= cores_of_local_ranks(local_ranks)});
  } catch (const ConfigError& error) {
    const std::string cause = shared_memory_problem(members.free_bytes, local_ranks);
    throw ConfigError(cause.empty() ? error.what() : fmt::format("{}. {}", cause, error.what()));
  }
}

}  // namespace orthant
