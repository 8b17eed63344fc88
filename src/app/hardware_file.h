// The hardware file that orthant calibrate writes.
#pragma once

#include <string>

#include "hardware/hardware.h"

namespace orthant {

/// Writes the profile to the file and prints its path and how to use it. Prints the profile if `file` is empty.
void write_profile(const Hardware& hardware, const std::string& file);

/// The date of a measurement, such as "2026-11-29".
std::string today();

}  // namespace orthant
