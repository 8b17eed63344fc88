// Limits the time that idle OpenMP threads spin before they sleep.
#pragma once

namespace orthant {

/// Limits the time that an idle OpenMP thread spins before it sleeps (GOMP_SPINCOUNT). libgomp's default is several
/// milliseconds. Spinning threads take cores from other programs, and, when those run, from this program's own busy
/// thread. libgomp reads the variable only while it is loaded, so this function sets it and executes the program again
/// in the same process. Does nothing if the user has set GOMP_SPINCOUNT or OMP_WAIT_POLICY.
void limit_openmp_spinning(char** argv);

}  // namespace orthant
