// Opens the engine of one rank: chooses the transport, finds the ranks that share this rank's memory, and sets how long
// a waiting thread polls.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "comm/comm.h"
#include "comm/engine.h"
#include "launch/watch.h"

namespace orthant {

/// All ranks call it together. `store` must be used by this Comm only. It costs each rank a constant number of store
/// requests, and rank 0 one that returns P texts. Throws ConfigError if UCX was requested and a rank has none, if it
/// does not start, or if two ranks have the same GPU. Throws CommError if ranks do not arrive or cannot reach each
/// other. On rank 0, calls `warn` if the GPUs of the ranks are of different models.
std::unique_ptr<Engine> open_engine(const Rendezvous& rendezvous, const Store& store, const Watch& watch,
                                    const CommOptions& options, int expected_connections,
                                    const std::function<void(const std::string& warning)>& warn);

}  // namespace orthant
