// Visibility: which keys each query sees. Causality, sliding windows, packed documents and padding all leave every
// query one interval of its sequence, so intervals are all that an attention kernel has to know, wherever its tokens
// come from.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace orthant {

/// Query t of sequence s sees the places [first, end) of its own sequence, at [s * queries + t]; none where they are
/// equal. A place is a token's index in the whole sequence, whatever part of it is here.
struct Visibility {
  int64_t sequences = 1;  // 1: what follows holds for every sequence
  int64_t queries = 0;
  std::vector<int64_t> first, end;
};

/// What a model lets its tokens see.
struct VisibilityRule {
  bool causal = true;
  // A query sees so many places up to its own; 0: all. Bidirectional: so many to either side.
  int64_t sliding_window = 0;
  bool operator==(const VisibilityRule&) const = default;
};

/// Of queries at these places. Documents, where there are any: starts of each sequence's documents, ascending, the
/// first one 0; attention stays inside. `lengths`: places from there on are padding, which nobody sees and which sees
/// nothing; empty: the whole sequence counts.
Visibility visibility_of(const VisibilityRule& rule, std::span<const int64_t> places, int64_t sequence_length,
                         std::span<const std::vector<int64_t>> document_starts = {},
                         std::span<const int64_t> lengths = {});

/// A rectangle of queries and keys that one call of a kernel does. Each of its queries sees at least one of its keys.
struct AttentionTile {
  enum Kind {
    full,    // every query sees every key
    causal,  // as many queries as keys; query i sees keys 0..i
    masked,  // query i sees keys [seen_first[i], seen_end[i])
  };
  int64_t sequence = 0;  // -1: all of them
  int64_t query_begin = 0, query_end = 0, key_begin = 0, key_end = 0;
  Kind kind = full;
  std::vector<int64_t> seen_first, seen_end;  // relative to key_begin

  int64_t queries() const { return query_end - query_begin; }
  int64_t keys() const { return key_end - key_begin; }
  /// Pairs of a query and a key that it sees.
  int64_t scores() const;
};

/// The tiles of queries against keys at these places, ascending: every query is in at most one tile, a query that sees
/// none of these keys in none. Where rows see alike or in a triangle, tiles are as large as that; others are cut into
/// at most `most_masked` rows, so that few hidden scores are computed.
std::vector<AttentionTile> attention_tiles(const Visibility& visibility, std::span<const int64_t> key_places,
                                           int64_t most_masked = 256);

}  // namespace orthant
