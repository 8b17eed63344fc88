// The four ways in which Orthant fails, and CHECK for our own invariants. Exit codes of the program stand here too.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>

namespace orthant {

enum ExitCode : int { kDone = 0, kFailed = 1, kUsage = 2, kInterrupted = 130 };

/// Base of everything that we throw. what() is complete: what is wrong, where, what was found, and the way out.
struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// The user asked for the impossible. Thrown only while planning, before any rank exists.
/// Form: key with file and line, the numbers, the nearest legal value.
struct ConfigError : Error {
  using Error::Error;
};

/// A file is damaged or not what it claims: file, offset, what was expected. Nothing is half-loaded.
struct DataError : Error {
  using Error::Error;
};

/// A peer or a link failed, or a collective hangs: rank, axis, Action and its index in the row, who waits for whom.
struct CommError : Error {
  using Error::Error;
};

/// Our own bug.
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

/// Throws LogicError with the condition and the values when the condition is false; on in release builds too.
/// (Plain CHECK belongs to c10, whose headers define it as a macro.)
#define ORTHANT_CHECK(condition, ...)                                                  \
  do {                                                                                 \
    if (!(condition)) [[unlikely]]                                                     \
      ::orthant::detail::check_failed(__FILE__, __LINE__, #condition,                  \
                                      ::orthant::detail::print_values(__VA_ARGS__));   \
  } while (false)
