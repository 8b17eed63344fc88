// What the standard library throws for a path, in our words.
#pragma once

#include <filesystem>
#include <string>
#include <utility>

#include "base/errors.h"

namespace orthant {

/// "PATH: Too many levels of symbolic links; ...": which path, the system's reason, the way out.
std::string explain(const std::filesystem::filesystem_error& error);

/// Calls the function; a std::filesystem_error becomes a DataError that explains it. For the doors of a room: behind
/// them paths are asked plainly.
template <typename Function>
decltype(auto) explained(Function&& function) {
  try {
    return std::forward<Function>(function)();
  } catch (const std::filesystem::filesystem_error& error) {
    throw DataError(explain(error));
  }
}

}  // namespace orthant
