// The interval of keys that each query sees, and the tiles that kernels compute for it. Tiles cover each visible
// (query, key) pair once and no hidden pair, and they are few. The oracle enumerates all pairs.
#include "model/visibility.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>
#include <set>

namespace orthant::visibility_test {
namespace {

std::vector<int64_t> range(int64_t begin, int64_t end, int64_t step = 1) {
  std::vector<int64_t> positions;
  for (int64_t p = begin; p < end; p += step) positions.push_back(p);
  return positions;
}

using Pairs = std::set<std::array<int64_t, 3>>;  // sequence, query, key

Pairs pairs_of(const AttentionTile& tile, int64_t sequences) {
  Pairs pairs;
  for (int64_t s = tile.sequence < 0 ? 0 : tile.sequence; s < (tile.sequence < 0 ? sequences : tile.sequence + 1);
       ++s) {
    for (int64_t q = 0; q < tile.queries(); ++q) {
      int64_t first = 0, end = tile.keys();
      if (tile.kind == AttentionTile::causal) end = q + 1;
      if (tile.kind == AttentionTile::masked) {
        first = tile.visible_begin[static_cast<size_t>(q)];
        end = tile.visible_end[static_cast<size_t>(q)];
      }
      EXPECT_LT(first, end) << "a query of a tile sees none of its keys";
      for (int64_t k = first; k < end; ++k) pairs.insert({s, tile.query_begin + q, tile.key_begin + k});
    }
  }
  return pairs;
}

// The pairs that the tiles compute. Each pair must occur once, and each query in at most one tile.
Pairs computed(const Visibility& v, const std::vector<int64_t>& keys, int64_t most_masked = 256) {
  Pairs all;
  std::set<std::pair<int64_t, int64_t>> rows;
  for (const AttentionTile& tile : attention_tiles(v, keys, most_masked)) {
    const Pairs pairs = pairs_of(tile, v.sequences);
    for (const auto& pair : pairs) EXPECT_TRUE(all.insert(pair).second) << "twice";
    EXPECT_EQ(tile.scores() * (tile.sequence < 0 ? v.sequences : 1), static_cast<int64_t>(pairs.size()));
    EXPECT_TRUE(tile.kind != AttentionTile::masked || tile.queries() <= most_masked);
    for (int64_t q = tile.query_begin; q < tile.query_end; ++q) EXPECT_TRUE(rows.insert({tile.sequence, q}).second);
  }
  return all;
}

Pairs expected(const Visibility& v, const std::vector<int64_t>& keys) {
  Pairs all;
  for (int64_t s = 0; s < v.sequences; ++s) {
    for (int64_t q = 0; q < v.queries; ++q) {
      const auto i = static_cast<size_t>(s * v.queries + q);
      for (size_t k = 0; k < keys.size(); ++k) {
        if (keys[k] >= v.first[i] && keys[k] < v.end[i]) all.insert({s, q, static_cast<int64_t>(k)});
      }
    }
  }
  return all;
}

// Intervals computed by hand for causality, windows, documents and padding.
TEST(Visibility, MatchesIntervalsByHand) {
  const auto positions = range(0, 6);
  EXPECT_EQ(compute_visibility({}, positions, 6).end, range(1, 7));
  EXPECT_EQ(compute_visibility({.causal = false}, positions, 6).end, std::vector<int64_t>(6, 6));
  const auto windowed = compute_visibility({.sliding_window = 2}, positions, 6);
  EXPECT_EQ(windowed.first, (std::vector<int64_t>{0, 0, 1, 2, 3, 4}));
  EXPECT_EQ(windowed.end, range(1, 7));
  // A window of any size is legal; one of at least the sequence length equals no window, without overflow.
  for (const bool causal : {true, false}) {
    for (const int64_t window : {int64_t{6}, int64_t{7}, INT64_MAX - 3, INT64_MAX}) {
      const auto wide = compute_visibility({.causal = causal, .sliding_window = window}, positions, 6);
      const auto all = compute_visibility({.causal = causal}, positions, 6);
      EXPECT_EQ(wide.first, all.first) << window;
      EXPECT_EQ(wide.end, all.end) << window;
    }
  }
  const std::vector<int64_t> starts[] = {{0, 4}, {0, 1, 5}};
  const auto packed = compute_visibility({.causal = false}, positions, 6, starts);
  EXPECT_EQ(packed.first, (std::vector<int64_t>{0, 0, 0, 0, 4, 4, 0, 1, 1, 1, 1, 5}));
  EXPECT_EQ(packed.end, (std::vector<int64_t>{4, 4, 4, 4, 6, 6, 1, 5, 5, 5, 5, 6}));
  const int64_t lengths[] = {6, 3};
  const auto padded = compute_visibility({.causal = false}, positions, 6, {}, lengths);
  EXPECT_EQ(padded.end, (std::vector<int64_t>{6, 6, 6, 6, 6, 6, 3, 3, 3, 0, 0, 0}));
}

// The example of Unified Sequence Parallelism, section 2.6 and check 8: documents that start at 0, 7 and 14 in 16
// tokens, on eight ranks of two tokens.
TEST(Visibility, OfPackedDocumentsOnARank) {
  const std::vector<int64_t> starts[] = {{0, 7, 14}};
  const auto of_rank = [&](int64_t rank, bool causal) {
    const auto v = compute_visibility({.causal = causal}, range(2 * rank, 2 * rank + 2), 16, starts);
    return std::vector<std::pair<int64_t, int64_t>>{{v.first[0], v.end[0]}, {v.first[1], v.end[1]}};
  };
  using Seen = std::vector<std::pair<int64_t, int64_t>>;
  EXPECT_EQ(of_rank(3, true), (Seen{{0, 7}, {7, 8}}));    // 7 keys for a document's last token, 1 for the next first
  EXPECT_EQ(of_rank(5, true), (Seen{{7, 11}, {7, 12}}));  // keys 7 to 11
  EXPECT_EQ(of_rank(3, false), (Seen{{0, 7}, {7, 14}}));
  EXPECT_EQ(of_rank(7, true), (Seen{{14, 15}, {14, 16}}));
}

// Every placement of a causal ring needs one tile for each block, and documents one tile each.
TEST(Visibility, UsesOneTilePerTriangleOrRectangle) {
  const auto kinds = [](const Visibility& v, const std::vector<int64_t>& keys) {
    std::vector<std::tuple<int, int64_t, int64_t, int64_t, int64_t>> all;
    for (const AttentionTile& t : attention_tiles(v, keys)) {
      all.emplace_back(t.kind, t.query_begin, t.query_end, t.key_begin, t.key_end);
    }
    return all;
  };
  using T = AttentionTile;
  using Kinds = std::vector<std::tuple<int, int64_t, int64_t, int64_t, int64_t>>;
  // Zigzag: 512 tokens on 4 ranks are split into 8 parts; rank 1 holds parts 1 and 6.
  const auto piece = [](int64_t first, int64_t last) {
    auto positions = range(64 * first, 64 * first + 64);
    for (const int64_t p : range(64 * last, 64 * last + 64)) positions.push_back(p);
    return positions;
  };
  const auto mine = compute_visibility({}, piece(1, 6), 512);
  EXPECT_EQ(kinds(mine, piece(1, 6)), (Kinds{{T::causal, 0, 128, 0, 128}}));
  EXPECT_EQ(kinds(mine, piece(0, 7)), (Kinds{{T::full, 0, 128, 0, 64}}));
  EXPECT_EQ(kinds(mine, piece(2, 5)), (Kinds{{T::full, 64, 128, 0, 128}}));
  // Stripes: each block is a triangle, with the diagonal if the keys do not come after the queries.
  const auto stripe = compute_visibility({}, range(1, 512, 4), 512);
  EXPECT_EQ(kinds(stripe, range(0, 512, 4)), (Kinds{{T::causal, 0, 128, 0, 128}}));
  EXPECT_EQ(kinds(stripe, range(2, 512, 4)), (Kinds{{T::causal, 1, 128, 0, 127}}));
  // Contiguous: a block of later keys is hidden, so it needs no tile.
  EXPECT_EQ(kinds(compute_visibility({}, range(0, 128), 512), range(128, 256)), Kinds{});
  // Each document is a triangle of its own.
  const std::vector<int64_t> starts[] = {{0, 40, 200}};
  EXPECT_EQ(kinds(compute_visibility({}, range(0, 512), 512, starts), range(0, 512)),
            (Kinds{{T::causal, 0, 40, 0, 40}, {T::causal, 40, 200, 40, 200}, {T::causal, 200, 512, 200, 512}}));
}

// For 300 random rules, lengths, documents and placements, the tiles compute the pairs of the oracle.
TEST(Visibility, TilesComputeEverySeenPairOnce) {
  std::mt19937 random(7);
  const auto below = [&](int64_t n) { return static_cast<int64_t>(random() % static_cast<uint64_t>(n)); };
  for (int trial = 0; trial < 300; ++trial) {
    const int64_t length = 1 + below(300), sequences = 1 + below(3);
    const VisibilityRule rule{.causal = below(2) == 0, .sliding_window = below(2) == 0 ? 0 : 1 + below(length)};
    std::vector<std::vector<int64_t>> starts;
    std::vector<int64_t> lengths;
    for (int64_t s = 0; s < sequences; ++s) {
      std::set<int64_t> cuts{0};
      for (int64_t i = below(6); i > 0; --i) cuts.insert(below(length));
      starts.emplace_back(cuts.begin(), cuts.end());
      lengths.push_back(below(length + 1));
    }
    if (below(2) == 0) starts.clear();
    if (below(2) == 0) lengths.clear();
    const int64_t ranks = 1 + below(4);
    const auto held = [&](int64_t rank, bool strided) {
      return strided ? range(std::min(rank, length), length, ranks)
                     : range(rank * length / ranks, (rank + 1) * length / ranks);
    };
    const bool strided = below(2) == 0;
    const auto v = compute_visibility(rule, held(below(ranks), strided), length, starts, lengths);
    const auto keys = held(below(ranks), strided);
    ASSERT_EQ(computed(v, keys, 1 + below(100)), expected(v, keys)) << trial;
  }
}

// The number of scores that a rank computes over all hops of a causal ring has the published values (Ring
// Self-Attention, check 15; Unified Sequence Parallelism, check 7).
TEST(Visibility, CountsTheScoresOfEachRank) {
  const auto scores = [](const std::vector<int64_t>& queries, int64_t length) {
    int64_t sum = 0;
    for (const AttentionTile& tile : attention_tiles(compute_visibility({}, queries, length), range(0, length)))
      sum += tile.scores();
    return sum;
  };
  const auto zigzag = [](int64_t length, int64_t ranks, int64_t rank) {
    const int64_t piece = length / (2 * ranks);
    auto positions = range(rank * piece, (rank + 1) * piece);
    for (const int64_t p : range((2 * ranks - 1 - rank) * piece, (2 * ranks - rank) * piece)) positions.push_back(p);
    return positions;
  };
  for (int64_t rank = 0; rank < 8; ++rank) {
    EXPECT_EQ(scores(zigzag(64, 8, rank), 64), 260);
    EXPECT_EQ(scores(range(rank, 64, 8), 64), 232 + 8 * rank);
    EXPECT_EQ(scores(range(8 * rank, 8 * rank + 8), 64), 36 + 64 * rank);
  }
  for (const auto& [ranks, each] : {std::pair{2, 264}, {4, 132}, {8, 66}}) {
    for (int64_t rank = 0; rank < ranks; ++rank) EXPECT_EQ(scores(zigzag(32, ranks, rank), 32), each);
  }
}

}  // namespace
}  // namespace orthant::visibility_test
