// Opens the engine of one rank: which transport, which ranks share its memory, how long a waiting thread may look.
#pragma once

#include <memory>

#include "comm/comm.h"
#include "comm/engine.h"

namespace orthant {

/// All ranks call it together. CommError when they do not agree on the transport, or it cannot be opened.
std::unique_ptr<Engine> open_engine(const Rendezvous& rendezvous, const Store& store, const CommOptions& options);

}  // namespace orthant
