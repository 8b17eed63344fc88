// Measures the engine's kernels on this machine: products, attention, and kernels that are bound by memory. All cores
// run the same kernel at the same time, one thread each, as the ranks of a run do.
#pragma once

#include <functional>
#include <string>

#include "hardware/fit.h"

namespace orthant {

/// Reports progress: the finished share of the measurements, from 0 to 1, and the name of the current kind.
using ReportProgress = std::function<void(double share, const std::string& what)>;

/// Appends the measured kernels. It takes about `seconds` seconds.
void measure_kernels(Measurements& measured, double seconds, const ReportProgress& report);

}  // namespace orthant
