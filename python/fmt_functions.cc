// Defines the functions of fmt that the libraries of src/ call, for a shared library that must not need libfmt.so.
// Debian has no static libfmt, so the header-only form is compiled here once, without inlining. Its inline functions
// have the names of the library's functions. The calls below use every part of fmt that src/ uses.
#define FMT_HEADER_ONLY 1
#include <fmt/format.h>

#include <cstdio>
#include <string>

namespace orthant::fmt_functions {

// This function is never called. Without -O, the compiler emits every function of fmt that it reaches.
std::string use_fmt(double number, float small, std::FILE* file) {
  fmt::print(file, "{:.3g} {:L}", number, 1000);
  return fmt::format("{} {} {:x} {:?} {:L}", number, small, 1, "text", number);
}

}  // namespace orthant::fmt_functions
