// Runs ranks as threads of one process, over the same transports as processes. Used by tests with many ranks and by
// `orthant verify`.
#pragma once

#include <functional>

#include "launch/rendezvous.h"

namespace orthant {

/// Runs fn once per rank, each on its own thread with one intra-op thread: P ranks take P threads. When one throws, the
/// Comms of the others are cancelled, so that none hangs. After all have ended, rethrows the first exception that is
/// not a CommError, because a CommError is usually a consequence. If all are CommErrors, rethrows the first.
void run_ranks(int ranks, const std::function<void(Rendezvous rendezvous, int rank)>& fn);

}  // namespace orthant
