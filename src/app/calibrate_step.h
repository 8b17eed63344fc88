// The part of `orthant calibrate` that compares whole steps with their plans: differences between a kernel or a message
// alone and the same one in a step.
#pragma once

#include "hardware/hardware.h"

namespace orthant {

/// Trains small models on data ranks, tensor ranks and sequence ranks with a core each. Sets the table [step], and the
/// share of the memory's bandwidth. It takes about a minute on two cores.
void fit_step(Hardware& hardware);

}  // namespace orthant
