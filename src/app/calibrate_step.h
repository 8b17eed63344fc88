// The part of `orthant calibrate` that compares whole steps with their plans: differences between a kernel or a message
// alone and the same one in a step.
#pragma once

#include "hardware/hardware.h"

namespace orthant {

/// Measures steps of one device of several sizes, on all cores at once, and sets the shares of their rates that
/// products, attention and memory reach in a step. It takes about `seconds` seconds.
void fit_step(Hardware& hardware, double seconds);

/// Trains on two ranks with tensor and sequence parallelism, and sets the time of the software around a message.
void fit_calls(Hardware& hardware);

}  // namespace orthant
