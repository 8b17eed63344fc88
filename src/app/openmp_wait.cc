#include "app/openmp_wait.h"

#include <unistd.h>

#include <cstdlib>

namespace orthant {

// Measured with benchmarks/threads/spinning.py: see RESULTS.md beside it.
constexpr const char* kSpinCount = "10000";

void limit_openmp_spinning(char** argv) {
  if (std::getenv("GOMP_SPINCOUNT") != nullptr || std::getenv("OMP_WAIT_POLICY") != nullptr) return;
  setenv("GOMP_SPINCOUNT", kSpinCount, 1);
  execv("/proc/self/exe", argv);
  // Where the program cannot be started again it goes on: it is slower on a busy machine, and correct.
}

}  // namespace orthant
