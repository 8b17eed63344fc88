// Rendezvous: connects the ranks of a run through a store, and checks that they belong to one run.
//
// Growth with P ranks: connect() costs each rank a constant number of store requests, plus repeated ones while it
// waits; under torchrun it costs rank 0 O(P) of them. A store in a file also costs each rank O(P) time, because every
// rank reads every entry. check_agreement() costs each rank a constant number of store requests.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "launch/host_board.h"
#include "launch/launch.h"
#include "launch/store.h"

namespace orthant {

/// The result of connecting: the store and this rank's number in the run. Copies share the store.
struct Rendezvous {
  Store store;
  int rank = 0;
  int world_size = 1;
  /// The local address, of IPv4 or IPv6, at which other ranks reach this one.
  std::string address = "127.0.0.1";
  /// The network interface that the user named (GLOO_SOCKET_IFNAME); empty if none was named.
  std::string interface_name = {};
  /// True if the ranks are threads of one process.
  bool in_process = false;
  /// True if this rank's process serves the store, and must therefore leave last.
  bool serves = false;
  /// Memory that the ranks of this host share; null if the ranks are threads, or if there is only one.
  std::shared_ptr<HostBoard> board = nullptr;
  /// Number of Comms and agreement checks so far. Each has its own keys, so all ranks must make them in the same order.
  std::shared_ptr<std::atomic<int>> comms = std::make_shared<std::atomic<int>>(0);
};

/// Connects to the other ranks: as a client of the launcher's store, through a store that rank 0 serves, or through a
/// file. The file's name is removed once all ranks have arrived; a file left by an earlier start is ignored. `text` is
/// the effective configuration, which distinguishes the ranks of two runs (see run_claim.h); empty if it is not known.
/// Throws CommError if no store answers, if ranks are missing after timeout_s, or if the port is in use. If another run
/// serves there, it throws CommError and writes nothing. Over TCP, the store of the result is authenticated with the
/// secret of the launch.
Rendezvous connect(const Launch& launch, double timeout_s = 60, const std::string& text = "");

/// The prefix of a run's keys on a store that may hold several runs.
std::string run_prefix(const std::string& run_id);

/// All ranks call it with the same text, usually the effective configuration, one setting a line. Throws ConfigError on
/// all ranks if world sizes or texts differ. The message names the rank and the first line that differs.
void check_agreement(const Rendezvous& rendezvous, const std::string& text, double timeout_s = 60);

}  // namespace orthant
