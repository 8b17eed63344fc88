// Linformer over a ring: each rank projects the keys and values of its own tokens with its own rows of E and F, and the
// partial summaries are added up. What travels does not grow with the length of the sequence.
//
// Li, Xue, Baranwal, Li, You 2021, "Sequence Parallelism: Long Sequence Training from System Perspective" (arXiv
// 2105.13120), "sparse attention". Bytes a rank and layer, n ranks, e bytes an element of the sums (4, or 8 for
// float64), B sequences, Z key heads of A elements, K_p summary rows: one all_reduce forward and one backward, each
// 2(n-1)/n 2 B Z K_p A e. E and F are split over the ring and their gradients are complete where they are, so no one
// reduces them over it: memory a rank stays the same where length and ring grow together (Table 3).
#pragma once

#include "comm/comm.h"
#include "model/attention_core.h"

namespace orthant {

/// linformer_attention() on the ranks of the axes, each with the tokens at its contiguous ring_places() and their rows
/// of E and F. The Comm must outlive it.
AttentionCore linformer(Comm& comm, Axes axes);

}  // namespace orthant
