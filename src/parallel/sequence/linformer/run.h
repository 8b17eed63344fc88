// Linformer over a ring: each rank projects the keys and values of its own tokens with its own rows of E and F, and an
// all-reduce adds the partial summaries. The bytes sent do not grow with the sequence length.
//
// Li, Xue, Baranwal, Li, You 2021, "Sequence Parallelism: Long Sequence Training from System Perspective" (arXiv
// 2105.13120), "sparse attention". Bytes sent by a rank for one layer: one all_reduce forward and one backward, each
// 2(n-1)/n 2 B Z K_p A e. Here n ranks, B sequences, Z key heads of A elements, K_p summary rows, and e bytes for an
// element of the sums (4, or 8 for float64). E and F are sharded over the ring, and each rank's gradients of its rows
// are complete, so they need no reduction over it. Memory per rank stays constant where sequence length and ring size
// grow together (Table 3).
#pragma once

#include "comm/comm.h"
#include "model/attention_core.h"

namespace orthant {

/// linformer_attention() on the ranks of the axes. Each rank has the tokens at its contiguous ring_positions() and the
/// rows of E and F for those tokens. The Comm must outlive the core.
AttentionCore linformer(Comm& comm, Axes axes);

}  // namespace orthant
