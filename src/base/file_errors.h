// Turns std::filesystem_error into a DataError that names the path, the reason and a remedy.
#pragma once

#include <filesystem>
#include <string>
#include <utility>

#include "base/errors.h"

namespace orthant {

/// Message with the path, the system's reason and a remedy: "PATH: Too many levels of symbolic links; ...".
std::string explain(const std::filesystem::filesystem_error& error);

/// Calls the function and converts a std::filesystem_error into a DataError with explain() as its message. The public
/// entry points of a library use it, so that the code inside can use std::filesystem directly.
template <typename Function>
decltype(auto) explained(Function&& function) {
  try {
    return std::forward<Function>(function)();
  } catch (const std::filesystem::filesystem_error& error) {
    throw DataError(explain(error));
  }
}

}  // namespace orthant
