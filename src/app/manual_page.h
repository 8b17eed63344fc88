// The manual page orthant(1), made from the table of commands and the table of keys.
#pragma once

#include <string>

namespace orthant {

/// Returns the page in the form of groff's man macros.
std::string manual_page();

}  // namespace orthant
