// The four error types of Orthant, the exit codes of the program, and ORTHANT_CHECK for internal invariants.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>

namespace orthant {

enum ExitCode : int { kDone = 0, kFailed = 1, kUsage = 2, kInterrupted = 130 };

/// Base of every exception that Orthant throws. The message is complete: it names the problem, the place, the value
/// found and the remedy.
struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// The user requested an impossible configuration. It is thrown only while planning, before any rank exists.
/// The message gives the key with file and line, the numbers, and the nearest legal value.
struct ConfigError : Error {
  using Error::Error;
};

/// A file is damaged or has the wrong content. The message gives the file, the offset and the expected content.
/// Nothing is partly loaded.
struct DataError : Error {
  using Error::Error;
};

/// A peer or a link failed, or a collective hangs. The message gives the rank, the mesh axis, the Action with its index
/// in the row, and which rank waits for which.
struct CommError : Error {
  using Error::Error;
};

/// An internal invariant is violated: a bug in Orthant.
struct LogicError : Error {
  using Error::Error;
};

namespace detail {
/// Throws LogicError("file:line: condition [values]").
[[noreturn]] void check_failed(const char* file, int line, const char* condition, const std::string& values);

template <typename... Values>
std::string print_values(const Values&... values) {
  std::string out;
  ((out += out.empty() ? fmt::format("{}", values) : fmt::format(", {}", values)), ...);
  return out;
}
}  // namespace detail

}  // namespace orthant

/// Throws LogicError with the condition and the values if the condition is false. The check stays on in release builds.
/// The name has a prefix because the headers of c10 define CHECK as a macro.
#define ORTHANT_CHECK(condition, ...)                                                  \
  do {                                                                                 \
    if (!(condition)) [[unlikely]]                                                     \
      ::orthant::detail::check_failed(__FILE__, __LINE__, #condition,                  \
                                      ::orthant::detail::print_values(__VA_ARGS__));   \
  } while (false)
