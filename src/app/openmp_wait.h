// Bounds how long idle OpenMP threads spin before they sleep.
#pragma once

namespace orthant {

/// Bounds how long an idle OpenMP thread spins before it sleeps, by GOMP_SPINCOUNT. libgomp's default is several
/// milliseconds, which takes cores from other programs and, on a busy machine, from this program's own working thread.
/// libgomp reads the variable only when it is loaded, so this function sets it and executes the program again in the
/// same process. It does nothing if OMP_WAIT_POLICY or a valid GOMP_SPINCOUNT is set, by the user or an earlier call.
void limit_openmp_spinning(char** argv);

}  // namespace orthant
