#include "app/hardware_file.h"

#include <fmt/chrono.h>

#include <cstdio>
#include <ctime>

#include "app/streams.h"

namespace orthant {

void write_profile(const Hardware& hardware, const std::string& file) {
  if (file.empty()) {
    std::fputs(to_toml(hardware).c_str(), stdout);
    return;
  }
  write_file("--write", file, to_toml(hardware));
  fmt::print("the profile is in {}; use it as orthant plan RUN_FILE --hardware {}\n", file, file);
}

std::string today() { return fmt::format("{:%Y-%m-%d}", fmt::localtime(std::time(nullptr))); }

}  // namespace orthant
