// The name of this machine.
#pragma once

#include <string>

namespace orthant {

/// Returns the name of this machine; "localhost" if it has none.
std::string host_name();

}  // namespace orthant
