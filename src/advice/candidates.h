// Values that the search for a legal configuration tries for a key.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/config.h"

namespace orthant {

/// Returns the divisors of a positive number in ascending order.
std::vector<int64_t> divisors_of(int64_t number);

/// Returns other values of the key as in TOML, nearest to the present one first. A degree or mesh takes the
/// factorisations of run.ranks, and a text its legal values. A number takes `numbers` with their multiples and
/// divisors, and neighbors up to `reach` away. The values need not be legal.
std::vector<std::string> candidates(const Config& config, const std::string& key, const std::vector<double>& numbers,
                                    int64_t reach);

}  // namespace orthant
