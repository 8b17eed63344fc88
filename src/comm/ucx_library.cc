#ifdef ORTHANT_UCX

#include "comm/ucx_library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>

namespace orthant {
namespace {

// UCX reads these when it is loaded, and from the environment alone; a user's own values stay. It would catch the
// signals of crashes, and write to stderr what our errors say.
[[maybe_unused]] const bool kQuiet = [] {
  constexpr int kKeep = 0;
  setenv("UCX_HANDLE_ERRORS", "none", kKeep);
  setenv("UCX_LOG_LEVEL", "fatal", kKeep);
  setenv("UCX_WARN_UNUSED_ENV_VARS", "n", kKeep);
  return true;
}();

UcxLibrary load() {
  constexpr const char* kName = "libucp.so.0";
  UcxLibrary library;
  void* const handle = dlopen(kName, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    library.problem = fmt::format("{} cannot be loaded (Debian's package: libucx0)", kName);
    return library;
  }
#define ORTHANT_LOOK_UP(name)                                                     \
  library.name = reinterpret_cast<decltype(&::name)>(dlsym(handle, #name));       \
  if (library.name == nullptr) library.problem = fmt::format("{} has no {}; UCX 1.13 or newer is needed", kName, #name);
  ORTHANT_UCX_FUNCTIONS(ORTHANT_LOOK_UP)
#undef ORTHANT_LOOK_UP
  return library;
}

}  // namespace

const UcxLibrary& ucx() {
  static const UcxLibrary library = load();
  return library;
}

}  // namespace orthant

#endif
