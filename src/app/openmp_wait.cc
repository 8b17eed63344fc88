#include "app/openmp_wait.h"

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "base/clock.h"
#include "base/text.h"

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

// Whether libgomp accepts the value of GOMP_SPINCOUNT: a number with an optional unit, or "infinite". It ignores any
// other value and then spins for its default time.
bool is_spin_count(const std::string& value) {
  const std::string text = to_lower(value);
  const size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
  const std::string unit = text.substr(digits);
  if (digits == 0) return unit == "infinite" || unit == "infinity";
  return unit.empty() || unit == "k" || unit == "m" || unit == "g" || unit == "t";
}

}  // namespace

void limit_openmp_spinning(char** argv) {
  const char* const count = std::getenv("GOMP_SPINCOUNT");
  if ((count != nullptr && is_spin_count(count)) || std::getenv("OMP_WAIT_POLICY") != nullptr) return;
  constexpr int64_t kDefaultTurns = 300'000;  // libgomp's own limit, in turns of its waiting loop
  const int64_t turns = std::min(kDefaultTurns, static_cast<int64_t>(kSpin_s / std::max(pause_s(), 1e-10)));
  setenv("GOMP_SPINCOUNT", std::to_string(turns).c_str(), 1);
  execv("/proc/self/exe", argv);
  // If the program cannot be executed again, it continues with libgomp's default: correct, but slower on busy machines.
}

}  // namespace orthant
