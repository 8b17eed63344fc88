// Sequence parallelism, the placement: which tokens of each sequence a rank holds.
//
// The sequence axes are a mesh of their own, ulysses inside ring. A rank of the ring holds blocks of the sequence so
// chosen that all have the same work under a causal mask (zigzag: Fang and Zhao 2024, arXiv 2405.07719, section 3;
// stripes: Brandon et al. 2023, arXiv 2311.09431); its Ulysses group cuts that block once more, in order, so that the
// all-to-all puts it together again without reordering. Batches are cut once, at the input; no layer reorders anything.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace orthant {

enum class SequencePlacement {
  contiguous,  // ring rank r: the r-th part
  zigzag,      // cut in 2R: parts r and 2R-1-r
  stripe,      // tokens r, r+R, r+2R, ...
};

/// As the run file writes it; LogicError for another name, since the table of keys has refused it.
SequencePlacement sequence_placement_of(std::string_view name);

/// Into how many pieces it cuts a sequence. Each has a token where there are as many, and then every rank has one.
int64_t pieces(SequencePlacement placement, int64_t ulysses, int64_t ring);

/// Places, ascending, of a sequence of any length that ring rank r of R attends from. Parts are balanced where they do
/// not come out even.
std::vector<int64_t> ring_places(SequencePlacement placement, int64_t seq_len, int ring, int r);

/// Those of them that rank u of U in its Ulysses group holds outside attention.
std::vector<int64_t> held_places(SequencePlacement placement, int64_t seq_len, int ulysses, int u, int ring, int r);

/// How many they are, without listing them.
int64_t num_ring_places(SequencePlacement placement, int64_t seq_len, int ring, int r);
int64_t num_held_places(SequencePlacement placement, int64_t seq_len, int ulysses, int u, int ring, int r);

}  // namespace orthant
