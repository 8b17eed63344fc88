// MKL's vector functions (exp, log, cos, ... of a tensor) and the threads that call them first.
#pragma once

namespace orthant {

/// Has MKL find out which CPU this is, by one call on one thread; later calls do nothing. Where a tensor of more than
/// 2,048 entries, or several ranks, make the first call on several threads, a thread may see half of the answer and
/// compute its part with 26 bits instead of 53, once and silently (pytorch/pytorch#188792; docs/numerics.md).
void resolve_vector_math();

}  // namespace orthant
