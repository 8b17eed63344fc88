// Compares the hosts and transports of all ranks, then opens UCX or Gloo.
#include "comm/open_engine.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <vector>

#include "base/errors.h"
#include "base/terminal_text.h"
#include "base/text.h"
#include "comm/shared_memory.h"
#include "launch/spawn.h"

namespace orthant {
namespace {

// A key that is equal for ranks that share memory: same machine, same boot, same IPC namespace.
std::string host_key() {
  std::string boot;
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::getline(file, boot);
  char ipc[64] = {};
  (void)!readlink("/proc/self/ns/ipc", ipc, sizeof ipc - 1);
  return boot + ipc;
}

struct Member {
  std::string host, transport;  // "ucx", or why the rank has no UCX
  int64_t free_bytes;           // free shared memory, before any rank has used some
};

using WaitForValue = std::function<std::string(const std::string& key, int rank)>;

// Posts this rank's host and transport, and reads those of all ranks.
std::vector<Member> exchange_members(const Rendezvous& rendezvous, const Store& store,
                                     const WaitForValue& wait_for_value, const CommOptions& options) {
  const std::string problem = options.transport == "gloo" ? "its transport is gloo" : ucx_problem();
  const auto key = [](int rank) { return fmt::format("host/{}", rank); };
  store.set(key(rendezvous.rank),
            fmt::format("{}\n{}\n{}", host_key(), problem.empty() ? "ucx" : problem, free_shared_memory()));
  constexpr size_t kMostBytes = 1000;
  std::vector<Member> members;
  for (int rank = 0; rank < rendezvous.world_size; ++rank) {
    const auto lines = split(wait_for_value(key(rank), rank), '\n');
    ORTHANT_CHECK(lines.size() == 3, lines.size());
    members.push_back({lines[0], escape_for_terminal(lines[1], kMostBytes), std::stoll(lines[2])});
  }
  return members;
}

}  // namespace

std::unique_ptr<Engine> open_engine(const Rendezvous& rendezvous, const Store& store, const Watch& watch,
                                    const CommOptions& options) {
  const WaitForValue wait_for_value = [&](const std::string& key, int rank) {
    return watch.wait_for_value(store, key, rank, options.connect_timeout_s);
  };
  const auto members = exchange_members(rendezvous, store, wait_for_value, options);
  const auto without =
      std::find_if(members.begin(), members.end(), [](const Member& member) { return member.transport != "ucx"; });
  if (options.transport == "ucx" && without != members.end()) {
    throw ConfigError(fmt::format("rank {} cannot use UCX: {}; install it there, or set run.transport = \"auto\"",
                                  without - members.begin(), without->transport));
  }
  TransportOptions transport{.rank = rendezvous.rank,
                             .world_size = rendezvous.world_size,
                             .store = store,
                             .wait_for_value = wait_for_value,
                             .address = rendezvous.address,
                             .interface_name = rendezvous.interface_name,
                             .connect_timeout_s = options.connect_timeout_s};
  const Member& self = members[static_cast<size_t>(rendezvous.rank)];
  int64_t free_bytes = self.free_bytes;
  for (const Member& member : members) {
    transport.local.push_back(member.host == self.host);
    if (transport.local.back()) free_bytes = std::min(free_bytes, member.free_bytes);
  }
  const auto local_ranks = std::count(transport.local.begin(), transport.local.end(), true);
  const auto open = without == members.end() ? ucx_transport : gloo_transport;
  try {
    return std::make_unique<Engine>([&](MessageSink& sink) { return open(transport, sink); },
                                    EngineOptions{.timeout_s = options.timeout_s,
                                                  .cores_to_spare = local_ranks <= cores_of_local_ranks(local_ranks)});
  } catch (const ConfigError& error) {
    const std::string cause = shared_memory_problem(free_bytes, local_ranks);
    throw ConfigError(cause.empty() ? error.what() : fmt::format("{}. {}", cause, error.what()));
  }
}

}  // namespace orthant
