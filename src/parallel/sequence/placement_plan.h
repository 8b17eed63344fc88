// Sequence parallelism, placement: the positions of each sequence whose tokens a rank holds.
//
// The sequence axes form a mesh of their own, ulysses inside ring. A ring rank holds a block of positions chosen so
// that all ranks have the same work under a causal mask. Zigzag: Fang and Zhao 2024, arXiv 2405.07719, section 3;
// stripe: Brandon et al. 2023, arXiv 2311.09431. The Ulysses group shards that block in order, so that its all-to-all
// restores the block without reordering. Batches are sharded once, at the input; no layer reorders tokens.
//
// Example: 16 tokens, 4 ring ranks. A query at position p attends to p + 1 keys, so the work of a rank is the sum of
// p + 1 over its positions.
//
//   ring rank   contiguous   work      zigzag                 work      stripe      work
//   0           0..3          10       0, 1, 14, 15 (0, 7)     34       0 4  8 12    28
//   1           4..7          26       2, 3, 12, 13 (1, 6)     34       1 5  9 13    32
//   2           8..11         42       4, 5, 10, 11 (2, 5)     34       2 6 10 14    36
//   3           12..15        58       6, 7,  8,  9 (3, 4)     34       3 7 11 15    40
//
// Zigzag splits the sequence into 2 x 4 parts of two tokens; the numbers in brackets are the rank's two parts. With two
// Ulysses ranks, ring rank 1 splits its zigzag block into 2, 3 (u = 0) and 12, 13 (u = 1).
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace orthant {

enum class SequencePlacement {
  contiguous,  // ring rank r of R holds part r of R
  zigzag,      // the sequence is split into 2R parts; ring rank r holds parts r and 2R-1-r
  stripe,      // ring rank r holds positions r, r+R, r+2R, ...
};

/// The placement under its name in a run file. LogicError for an unknown name, because the table of keys refuses those.
SequencePlacement sequence_placement_of(std::string_view name);

/// Number of pieces that the placement splits a sequence into. If this is at most the sequence length, every piece, and
/// so every rank, has at least one token.
int64_t pieces(SequencePlacement placement, int64_t ulysses, int64_t ring);

/// Positions in ascending order that form the block of ring rank r: its queries inside attention. Any length is legal;
/// parts that do not divide evenly are balanced as shard() balances them.
std::vector<int64_t> ring_positions(SequencePlacement placement, int64_t seq_len, int ring, int r);

/// The part of ring_positions() that rank u of the Ulysses group holds outside attention, in ascending order.
std::vector<int64_t> held_positions(SequencePlacement placement, int64_t seq_len, int ulysses, int u, int ring, int r);

/// Lengths of the two lists above, without building them.
int64_t num_ring_positions(SequencePlacement placement, int64_t seq_len, int ring, int r);
int64_t num_held_positions(SequencePlacement placement, int64_t seq_len, int ulysses, int u, int ring, int r);

}  // namespace orthant
