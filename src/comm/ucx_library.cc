// Loads UCX with dlopen, sets its defaults, and collects its warnings for our error messages.
#ifdef ORTHANT_UCX

#include "comm/ucx_library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <utility>
#include <vector>

#include "base/text.h"

extern char** environ;

namespace orthant {
namespace {

// Defaults for UCX, which reads them from the environment only, when it is loaded; a user's own values stay. They stop
// UCX from catching SIGHUP and the signals of crashes. UCX's warnings go into our errors instead of stderr; another
// UCX_LOG_LEVEL prints them too.
constexpr const char* kQuietly = "warn";
constexpr std::pair<const char*, const char*> kDefaults[] = {
    {"UCX_HANDLE_ERRORS", "none"}, {"UCX_DEBUG_SIGNO", "0"}, {"UCX_LOG_LEVEL", kQuietly},
    {"UCX_WARN_UNUSED_ENV_VARS", "n"},
    // Most bytes of another process's memory that are read at once, so that other operations get their turn.
    {"UCX_CMA_SEG_SIZE", "4m"}};
[[maybe_unused]] const bool kSet = [] {
  constexpr int kKeep = 0;
  for (const auto& [name, value] : kDefaults) setenv(name, value, kKeep);
  return true;
}();

struct CapturedWarnings {
  std::mutex mutex;
  std::vector<std::string> lines;
};
CapturedWarnings& captured_warnings() {
  static auto* const kept = new CapturedWarnings;  // never freed: an abandoned rank may still log
  return *kept;
}

ucs_log_func_rc_t listen(const char*, unsigned, const char*, ucs_log_level_t level, const ucs_log_component_config_t*,
                         const char* format, va_list arguments) {
  static const bool show = std::strcmp(std::getenv("UCX_LOG_LEVEL"), kQuietly) != 0;
  if (level <= UCS_LOG_LEVEL_WARN) {
    va_list copy;
    va_copy(copy, arguments);
    char text[512] = {};
    std::vsnprintf(text, sizeof text, format, copy);
    va_end(copy);
    constexpr size_t kEnough = 2;  // lines; the first one names the cause
    auto& [mutex, lines] = captured_warnings();
    const std::lock_guard lock(mutex);
    const std::string line(trim(text));
    if (lines.size() < kEnough && std::find(lines.begin(), lines.end(), line) == lines.end()) lines.push_back(line);
  }
  return show ? UCS_LOG_FUNC_RC_CONTINUE : UCS_LOG_FUNC_RC_STOP;
}

UcxLibrary load() {
  constexpr const char* kName = "libucp.so.0";
  UcxLibrary library;
  void* const handle = dlopen(kName, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    library.problem = fmt::format("its library cannot be loaded (Debian's package: libucx0): {}", dlerror());
    return library;
  }
#define ORTHANT_LOOK_UP(name)                                               \
  library.name = reinterpret_cast<decltype(&::name)>(dlsym(handle, #name)); \
  if (library.name == nullptr)                                              \
    library.problem = fmt::format("{} has no {}; UCX 1.13 or newer is required", kName, #name);
  ORTHANT_UCX_FUNCTIONS(ORTHANT_LOOK_UP)
#undef ORTHANT_LOOK_UP
  if (library.problem.empty()) library.ucs_log_push_handler(listen);
  return library;
}

}  // namespace

const UcxLibrary& ucx() {
  static const UcxLibrary library = load();
  return library;
}

std::string ucx_complaints() {
  std::vector<std::string> parts;
  {
    const std::lock_guard lock(captured_warnings().mutex);
    parts.swap(captured_warnings().lines);
  }
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const bool ours = std::any_of(std::begin(kDefaults), std::end(kDefaults), [&](const auto& set) {
      return text == fmt::format("{}={}", set.first, set.second);
    });
    if (text.starts_with("UCX_") && !ours) parts.push_back("the environment sets " + text);
  }
  return parts.empty() ? "" : fmt::format(" ({})", join(parts, "; "));
}

}  // namespace orthant

#endif
