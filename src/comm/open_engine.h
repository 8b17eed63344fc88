// Opens the engine of one rank: which transport, which ranks share its memory, how long a waiting thread may look.
#pragma once

#include <memory>

#include "comm/comm.h"
#include "comm/engine.h"
#include "comm/watch.h"

namespace orthant {

/// All ranks call it together. ConfigError where UCX was asked for and one has none, or does not start; CommError where
/// ranks do not come, or cannot reach each other.
std::unique_ptr<Engine> open_engine(const Rendezvous& rendezvous, const Store& store, const Watch& watch,
                                    const CommOptions& options);

}  // namespace orthant
