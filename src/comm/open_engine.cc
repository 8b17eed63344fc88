#include "comm/open_engine.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <vector>

#include "base/errors.h"
#include "base/text.h"
#include "comm/spawn.h"

namespace orthant {
namespace {

// Equal for ranks that share memory: one machine, one boot, one namespace of shared memory.
std::string host_key() {
  std::string boot;
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::getline(file, boot);
  char ipc[64] = {};
  (void)!readlink("/proc/self/ns/ipc", ipc, sizeof ipc - 1);
  return boot + ipc;
}

struct Member {
  std::string host, transport;  // "ucx", or why it has none
};

// What each rank is and can, told to all.
std::vector<Member> introduce(const Rendezvous& rendezvous, const Store& store, const CommOptions& options) {
  const std::string problem = options.transport == "gloo" ? "gloo was asked for" : ucx_problem();
  const auto key = [](int rank) { return fmt::format("host/{}", rank); };
  store.set(key(rendezvous.rank), host_key() + "\n" + (problem.empty() ? "ucx" : problem));
  std::vector<Member> members;
  for (int rank = 0; rank < rendezvous.world_size; ++rank) {
    const auto lines = split(store.get(key(rank), options.meet_timeout_s), '\n');
    ORTHANT_CHECK(lines.size() == 2, lines.size());
    members.push_back({lines[0], lines[1]});
  }
  return members;
}

}  // namespace

std::unique_ptr<Engine> open_engine(const Rendezvous& rendezvous, const Store& store, const CommOptions& options) {
  const auto members = introduce(rendezvous, store, options);
  const auto without = std::find_if(members.begin(), members.end(), [](const Member& m) { return m.transport != "ucx"; });
  if (options.transport == "ucx" && without != members.end()) {
    throw CommError(fmt::format("rank {}: rank {} cannot use UCX: {}. Install it there, or set run.transport = \"auto\"",
                                rendezvous.rank, without - members.begin(), without->transport));
  }
  TransportOptions transport{.rank = rendezvous.rank,
                             .world_size = rendezvous.world_size,
                             .store = store,
                             .address = rendezvous.address,
                             .interface_name = rendezvous.interface_name,
                             .timeout_s = options.timeout_s,
                             .meet_timeout_s = options.meet_timeout_s};
  const std::string& here = members[static_cast<size_t>(rendezvous.rank)].host;
  for (const Member& member : members) transport.local.push_back(member.host == here);
  const auto local_ranks = std::count(transport.local.begin(), transport.local.end(), true);
  const auto open = without == members.end() ? ucx_transport : gloo_transport;
  return std::make_unique<Engine>([&](MessageSink& sink) { return open(transport, sink); },
                                  EngineOptions{.timeout_s = options.timeout_s,
                                                .cores_to_spare = local_ranks <= available_cores()});
}

}  // namespace orthant
