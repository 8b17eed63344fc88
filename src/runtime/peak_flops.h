// The rate of matrix products on this machine's CPU.
#pragma once

#include <string>

namespace orthant {

/// FLOP/s of one CPU rank's matrix products in this dtype, measured in about 30 ms.
double measure_peak_flops(const std::string& dtype);

}  // namespace orthant
