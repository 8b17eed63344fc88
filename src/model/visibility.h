// Visibility: which keys each query sees. Causality, sliding windows, packed documents and padding all leave each query
// one interval of positions of its sequence. An attention kernel therefore needs intervals only, wherever its tokens
// come from.
//
// Example: positions 0..5 hold two documents that start at 0 and 4, and the rule is causal with a window of 2. The
// queries 0..5 see [0,1), [0,2), [1,3), [2,4), [4,5), [4,6).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace orthant {

/// Query t of sequence s sees the positions [first, end) of its own sequence, stored at index s * queries + t; none if
/// first equals end. A position is a token's index in the unsharded sequence.
struct Visibility {
  int64_t sequences = 1;  // 1: the same intervals hold for every sequence
  int64_t queries = 0;
  std::vector<int64_t> first, end;
};

/// The visibility rule of a model.
struct VisibilityRule {
  bool causal = true;
  // Number of positions a query sees, its own included (to each side, if not causal); 0 = unlimited.
  int64_t sliding_window = 0;
  bool operator==(const VisibilityRule&) const = default;
};

/// The keys visible to queries at these positions. document_starts: the start positions of each sequence's documents,
/// ascending, the first one 0; attention stays inside a document. lengths: positions from lengths[s] on are padding,
/// which no query sees and which sees nothing. Empty: one document, and no padding.
Visibility compute_visibility(const VisibilityRule& rule, std::span<const int64_t> positions, int64_t sequence_length,
                              std::span<const std::vector<int64_t>> document_starts = {},
                              std::span<const int64_t> lengths = {});

/// A rectangle of queries and keys for one call of a kernel. Each of its queries sees at least one of its keys.
struct AttentionTile {
  enum Kind {
    full,    // every query sees every key
    causal,  // square; query i sees keys 0..i
    masked,  // query i sees keys [visible_begin[i], visible_end[i])
  };
  int64_t sequence = 0;  // -1: the tile applies to all sequences
  int64_t query_begin = 0, query_end = 0, key_begin = 0, key_end = 0;
  Kind kind = full;
  std::vector<int64_t> visible_begin, visible_end;  // relative to key_begin

  int64_t queries() const { return query_end - query_begin; }
  int64_t keys() const { return key_end - key_begin; }
  /// Number of visible (query, key) pairs.
  int64_t scores() const;
};

/// The tiles of the queries against keys at these positions, in ascending order. Every query is in at most one tile; a
/// query that sees none of these keys is in none. Runs of queries with equal intervals, or with triangular ones, become
/// one tile of any size. Others become masked tiles of at most `most_masked` rows, so that few hidden scores are
/// computed.
std::vector<AttentionTile> attention_tiles(const Visibility& visibility, std::span<const int64_t> key_positions,
                                           int64_t most_masked = 256);

}  // namespace orthant
