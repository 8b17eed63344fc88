// Initializes MKL's vector functions (exp, log, cos, ... of a tensor) safely in programs with several threads.
#pragma once

namespace orthant {

/// Makes MKL detect the CPU by one call on one thread; later calls do nothing. Otherwise the first call may come from
/// several threads at once: from a tensor of more than 2,048 elements, or from several ranks. A thread may then see a
/// half-written result and compute with 26 bits instead of 53, once and silently (pytorch/pytorch#188792;
/// docs/numerics.md).
void resolve_vector_math();

}  // namespace orthant
