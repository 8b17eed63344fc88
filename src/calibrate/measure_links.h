// Measures collectives and messages between the ranks of a Comm.
#pragma once

#include <vector>

#include "comm/comm.h"
#include "hardware/fit.h"

namespace orthant {

/// Measures every kind of collective of the model over all ranks of the Comm, and messages if it has two ranks. All
/// ranks call it with the same `seconds`, about which it takes. The result on rank 0 is valid.
std::vector<MeasuredCollective> measure_collectives(Comm& comm, double seconds);

}  // namespace orthant
