// The heads for which each rank of a Ulysses group computes attention.
#pragma once

#include <cstdint>

#include "mesh/mesh.h"

namespace orthant {

/// Query heads of a rank, and the key heads that they read. With at least as many key heads as ranks, a rank holds
/// whole groups of query heads around a key head; shards may be uneven. With fewer, only query heads are sharded, and a
/// key head goes to every rank that reads it.
struct HeadShard {
  Range query, key;
  /// The key head, counted from key.begin, that this rank's i-th query head reads.
  int64_t key_of(int64_t i, int64_t heads, int64_t key_heads) const {
    return (query.begin + i) / (heads / key_heads) - key.begin;
  }
  /// Whether this rank's i-th query head reads its key head i / (queries / keys), as attention kernels expect.
  bool regular(int64_t heads, int64_t key_heads) const;
};

/// `key_heads` must divide `heads`, and `heads` must be at least `ranks`; otherwise LogicError.
HeadShard head_shard(int64_t heads, int64_t key_heads, int ranks, int rank);

}  // namespace orthant
