// Rendezvous: how the ranks of a run find each other, and make sure that they are the ranks of one run.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "comm/launch.h"
#include "comm/store.h"

namespace orthant {

/// What a rank holds once it has met the others. Copies share the store.
struct Rendezvous {
  Store store;
  int rank = 0;
  int world_size = 1;
  /// The local address at which the other ranks reach this one.
  std::string address = "127.0.0.1";
  /// The network that the user named (GLOO_SOCKET_IFNAME), if he did.
  std::string interface_name = {};
  /// The ranks are threads of one process.
  bool in_process = false;
  /// This rank's process serves the store, and must therefore leave last.
  bool serves = false;
  /// How often ranks post a sign of life: seldom in a file, which grows with each.
  double beat_s = 0.5;
  /// How many Comms stand on it: each has its own keys, so all ranks must make them in the same order.
  std::shared_ptr<std::atomic<int>> comms = std::make_shared<std::atomic<int>>(0);
};

/// Meets the other ranks of the launch: as a client of the launcher's store, or with rank 0 serving it, or in a file,
/// whose name is gone when all have come; what an earlier start left under that name is not read. `text` is the
/// effective configuration, which distinguishes the ranks of two runs (see run_claim.h); empty if it is not known.
/// Throws CommError if no store answers or ranks are missing after timeout_s, if the port is in use, and, with nothing
/// written, if another run serves there.
Rendezvous connect(const Launch& launch, double timeout_s = 60, const std::string& text = "");

/// The prefix of a run's keys on a store that its launcher serves.
std::string run_prefix(const std::string& run_id, int attempt);

/// All ranks call it with the same text, usually the effective configuration, one setting a line. ConfigError on all
/// ranks when the world sizes or the texts differ: it names the rank, and the first line that differs.
void check_agreement(const Rendezvous& rendezvous, const std::string& text, double timeout_s = 60);

}  // namespace orthant
