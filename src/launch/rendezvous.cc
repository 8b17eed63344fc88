// Connects the ranks through a TCP store or a file, finds the local address, and compares the configurations.
#include "launch/rendezvous.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/errors.h"
#include "base/hash.h"
#include "base/terminal_text.h"
#include "launch/address.h"
#include "launch/failure_record.h"
#include "launch/owned_file.h"
#include "launch/process.h"
#include "launch/roll_call.h"
#include "launch/run_claim.h"
#include "launch/secret.h"
#include "launch/wait.h"

namespace orthant {
namespace {

constexpr const char* kHostFile = ".host";
constexpr const char* kArrivals = "store_file/arrived";
constexpr auto kLook = std::chrono::milliseconds(20);

// Whether all ranks run on this machine.
bool is_local(const Launch& launch) { return launch.local_size == launch.world_size; }

// A store in an open file, which works even after the file is renamed or removed. It lasts until the last process that
// opened it ends.
Store store_in(int fd) { return Store::file(fmt::format("/proc/self/fd/{}", fd)); }

// Rank 0 of a rendezvous through a file. It replaces a file that an earlier start of this user left under this name,
// and refuses a file of another user. It removes the name once all ranks have arrived, or after timeout_s.
Store create_store_file(const Launch& launch, double timeout_s) {
  std::string fresh = launch.path + ".XXXXXX";
  for (const std::string& left : {launch.path, launch.path + kHostFile}) {
    if (const int old = open_owned(left, O_RDONLY); old >= 0) close(old);
  }
  const int fd = mkostemp(fresh.data(), O_CLOEXEC);  // stays open until the process ends
  const auto refuse = [&](const std::string& why) {
    throw CommError(fmt::format(
        "the ranks cannot connect through the file {}: {}; set TMPDIR to a folder that all ranks can write, or "
        "set MASTER_ADDR and MASTER_PORT (the same for all ranks)",
        launch.path, why));
  };
  if (fd < 0) refuse(std::strerror(errno));
  const Store store = store_in(fd);
  // The identity of rank 0 is in a separate file. Other ranks must not open a store before they know that it belongs to
  // this start.
  try {
    create_owned(fresh + kHostFile, process_identity());
  } catch (const CommError&) {
    unlink(fresh.c_str());
    throw;
  }
  if (std::rename(fresh.c_str(), launch.path.c_str()) != 0 ||
      std::rename((fresh + kHostFile).c_str(), (launch.path + kHostFile).c_str()) != 0) {
    const std::string why = std::strerror(errno);
    unlink(fresh.c_str());
    unlink((fresh + kHostFile).c_str());
    refuse(why);
  }
  Wait wait(timeout_s, fmt::format("all {} ranks to open {}", launch.world_size, launch.path));
  while (store.add(kArrivals, 0) < launch.world_size - 1 && !wait.is_over()) std::this_thread::sleep_for(kLook);
  unlink((launch.path + kHostFile).c_str());
  unlink(launch.path.c_str());
  const auto arrived = store.add(kArrivals, 0) + 1;
  if (arrived < launch.world_size) {
    throw CommError(
        fmt::format("rank 0: only {} of {} ranks opened {} within {:g} s; start all ranks, check that they "
                    "can open this file, or increase run.timeout_s",
                    arrived, launch.world_size, launch.path, timeout_s));
  }
  return store;
}

// The other ranks wait for a file whose rank 0 is alive. A file left by an earlier start names a process that is gone.
Store join_store_file(const Launch& launch, double timeout_s) {
  Wait wait(timeout_s, fmt::format("rank 0 to create {}", launch.path));
  do {
    const ProcessState state = process_state(read_owned(launch.path + kHostFile));
    const int fd =
        state == ProcessState::running || state == ProcessState::stopped ? open_owned(launch.path, O_RDWR) : -1;
    if (fd >= 0) {
      const Store store = store_in(fd);
      store.add(kArrivals, 1);
      return store;
    }
    std::this_thread::sleep_for(kLook);
  } while (!wait.is_over());
  throw CommError(
      fmt::format("rank {}: rank 0 did not create {} within {:g} s; if the ranks are in "
                  "different containers, set MASTER_ADDR and MASTER_PORT (the same for all ranks)",
                  launch.rank, launch.path, timeout_s));
}

// Whether a run of Orthant serves its store on this port of this machine. Writes nothing.
bool is_served_by_a_run(int port) {
  constexpr double kAnswer_s = 1;
  try {
    return serves_a_run(Store::join(loopback_address(), port, kAnswer_s));
  } catch (const CommError&) {
    return false;
  }
}

// Serves the store of the run. If all ranks run on this machine, no other machine can reach it.
Store serve_store(const Launch& launch, double timeout_s) {
  try {
    return Store::serve(launch.port, timeout_s, launch.world_size,
                        is_local(launch) ? Reach::kThisMachine : Reach::kNetwork);
  } catch (const PortInUse&) {
    if (is_served_by_a_run(launch.port)) throw CommError(other_run_message(launch, ""));
    throw;
  }
}

// Returns the store of the run under a prefix that no other run uses. `text`: see connect().
Store open_store(const Launch& launch, const std::string& text, double timeout_s) {
  if (launch.store_kind == StoreKind::kFile) {
    const Store store = launch.rank == 0 ? create_store_file(launch, timeout_s) : join_store_file(launch, timeout_s);
    return store.named(fmt::format("store {}", launch.path)).under(run_prefix(launch.run_id));
  }
  const std::string host =
      is_local(launch) && launch.store_kind == StoreKind::kServedByRankZero ? loopback_address() : launch.address;
  const bool serves = launch.store_kind == StoreKind::kServedByRankZero && launch.rank == 0;
  if (launch.rank == 0 && !is_local(launch) && launch.secret.empty()) {
    fmt::print(stderr,
               "warning: the ranks of this run are on several machines and have no secret, so any program that reaches "
               "{} can end this run; set {} for all ranks (docs/launchers.md)\n",
               host_and_port(host, launch.port), kSecretFile);
  }
  const Store store = serves ? serve_store(launch, timeout_s) : Store::join(host, launch.port, timeout_s);
  return claim_rank(store, launch, text, timeout_s);
}

}  // namespace

std::string run_prefix(const std::string& run_id) { return fmt::format("orthant/{:016x}", xxh3(run_id)); }

Rendezvous connect(const Launch& launch, double timeout_s, const std::string& text) {
  Rendezvous rendezvous{.rank = launch.rank, .world_size = launch.world_size};
  if (launch.world_size == 1) {
    rendezvous.store = Store::in_process();
    return rendezvous;
  }
  rendezvous.address = local_address(launch);
  rendezvous.interface_name = launch.interface_name;
  rendezvous.store = open_store(launch, text, timeout_s);
  rendezvous.board = HostBoard::join(rendezvous.store, launch.world_size);
  rendezvous.serves = launch.store_kind == StoreKind::kServedByRankZero && launch.rank == 0;
  return rendezvous;
}

void check_agreement(const Rendezvous& rendezvous, const std::string& text, double timeout_s) {
  if (rendezvous.world_size == 1) return;
  const Store store = rendezvous.store.under(fmt::format("agree/{}", (*rendezvous.comms)++));
  Wait wait(timeout_s, rendezvous.rank > 1
                           ? ""
                           : fmt::format("all {} ranks to connect to the {}", rendezvous.world_size, store.name()));
  const RollCall call{.store = store,
                      .rank = rendezvous.rank,
                      .world_size = rendezvous.world_size,
                      .timeout_s = timeout_s,
                      .check = [&] {
                        if (has_failed(rendezvous.store)) throw PeerFailed();
                        wait.is_over();  // reports the wait
                      }};
  const std::string ours = fmt::format("world size {}\n{}", rendezvous.world_size, text);
  if (rendezvous.rank == 0) store.set("text", ours);
  const std::string difference = first_difference(await_text(call, "text", 0), ours, rendezvous.rank);
  if (!difference.empty()) end_roll_call(store, difference);
  const std::string verdict = difference.empty() ? call_roll(call) : difference;
  if (!verdict.empty()) {
    throw ConfigError(fmt::format("the ranks were started for different runs: {}", escape_for_terminal(verdict)));
  }
}

}  // namespace orthant
