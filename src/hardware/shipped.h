// The profiles under profiles/, compiled into the library. cmake/HardwareProfiles.cmake writes the definition. Private
// to this room.
#pragma once

#include <span>
#include <string_view>

namespace orthant {

/// One shipped file.
struct ShippedProfile {
  std::string_view name, text;
};

/// All shipped files, in alphabetical order.
std::span<const ShippedProfile> shipped_profiles();

}  // namespace orthant
