// Ranks as threads of one process, over Gloo like any others: for tests of many ranks, and for `orthant verify`.
#pragma once

#include <functional>

#include "comm/rendezvous.h"

namespace orthant {

/// Runs fn once for each rank, each on a thread of its own with one intra-op thread. When one throws, the Comms of the
/// others are broken off, so that none hangs; when all have ended, the first exception that is no mere consequence (no
/// CommError) is thrown on, else the first.
void run_ranks(int ranks, const std::function<void(Rendezvous rendezvous, int rank)>& fn);

}  // namespace orthant
