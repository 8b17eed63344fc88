#include "app/openmp_wait.h"

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "base/clock.h"

namespace orthant {
namespace {

// 2.5 ms covers the pause between two parallel operations, and still lets a waiting thread give its core to a busy
// program. benchmarks/threads/RESULTS.md has the measurements.
constexpr double kSpin_s = 2.5e-3;

// Seconds that one iteration of libgomp's spin loop takes, which is one pause instruction. CPUs differ by a factor of
// two or more.
double pause_s() {
  constexpr int kTurns = 1000, kTries = 3;
  double fastest_s = 1;
  for (int attempt = 0; attempt < kTries; ++attempt) {
    const auto start = Clock::now();
    for (int turn = 0; turn < kTurns; ++turn) {
#if defined(__x86_64__)
      __builtin_ia32_pause();
#else
      asm volatile("" ::: "memory");
#endif
    }
    fastest_s = std::min(fastest_s, seconds_since(start) / kTurns);
  }
  return fastest_s;
}

}  // namespace

void limit_openmp_spinning(char** argv) {
  if (std::getenv("GOMP_SPINCOUNT") != nullptr || std::getenv("OMP_WAIT_POLICY") != nullptr) return;
  const auto turns = static_cast<int64_t>(kSpin_s / std::max(pause_s(), 1e-10));
  setenv("GOMP_SPINCOUNT", std::to_string(turns).c_str(), 1);
  execv("/proc/self/exe", argv);
  // If the program cannot be executed again, it continues with libgomp's default: correct, but slower on busy machines.
}

}  // namespace orthant
