// How long idle threads of OpenMP spin before they sleep.
#pragma once

namespace orthant {

/// Limits the time for which an idle thread of OpenMP spins (GOMP_SPINCOUNT) before it sleeps. libgomp's default is
/// several milliseconds, which takes the cores from other programs and, where those run, from this program's own busy
/// thread. libgomp reads the variable only while it is loaded, so this function sets it and starts the program again in
/// the same process. It does nothing where the environment has GOMP_SPINCOUNT or OMP_WAIT_POLICY: the user chose.
void limit_openmp_spinning(char** argv);

}  // namespace orthant
