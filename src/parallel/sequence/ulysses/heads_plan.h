// Which heads a rank of a Ulysses group attends with.
#pragma once

#include <cstdint>

#include "mesh/mesh.h"

namespace orthant {

/// Query heads, and the key heads that they read. Ranks hold whole groups of query heads around a key head where there
/// are enough key heads (uneven shares are legal); else query heads are shared out alone, and a key head goes to every
/// rank that reads it.
struct HeadShare {
  Range query, key;
  /// The key head, counted from key.begin, that the i-th of the query heads reads.
  int64_t key_of(int64_t i, int64_t heads, int64_t key_heads) const {
    return (query.begin + i) / (heads / key_heads) - key.begin;
  }
  /// The i-th query head reads the (i / (queries / keys))-th key head, as kernels expect it.
  bool regular(int64_t heads, int64_t key_heads) const;
};

/// heads is a multiple of key_heads, and at least `ranks`.
HeadShare head_share(int64_t heads, int64_t key_heads, int ranks, int rank);

}  // namespace orthant
