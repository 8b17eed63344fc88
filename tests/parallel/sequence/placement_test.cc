// Placements, computed before any process exists: the positions of each rank, the balance of the causal work, and the
// groups of ranks. The expected tables are those of the two specifications.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <numeric>
#include <sstream>

#include "base/errors.h"
#include "mesh/mesh.h"
#include "model/visibility.h"
#include "parallel/sequence/placement_plan.h"
#include "parallel/sequence/ulysses/heads_plan.h"

namespace orthant::placement_test {
namespace {

using Positions = std::vector<int64_t>;
constexpr auto kContiguous = SequencePlacement::contiguous, kZigzag = SequencePlacement::zigzag,
               kStripe = SequencePlacement::stripe;

Positions range(int64_t begin, int64_t end) {
  Positions positions(static_cast<size_t>(end - begin));
  std::iota(positions.begin(), positions.end(), begin);
  return positions;
}

// The positions of each rank, in the order of ranks with ulysses inside ring.
std::vector<Positions> all_positions(SequencePlacement placement, int64_t length, int ulysses, int ring) {
  std::vector<Positions> all;
  for (int r = 0; r < ring; ++r) {
    for (int u = 0; u < ulysses; ++u) all.push_back(held_positions(placement, length, ulysses, u, ring, r));
  }
  return all;
}

// Unified Sequence Parallelism, check 1: the tables of sections 2.5 and 3.3 for sixteen tokens.
TEST(Placement, OfSixteenTokensIsTheReferences) {
  using All = std::vector<Positions>;
  EXPECT_EQ(all_positions(kZigzag, 16, 2, 2), (All{{0, 1, 2, 3}, {12, 13, 14, 15}, {4, 5, 6, 7}, {8, 9, 10, 11}}));
  EXPECT_EQ(all_positions(kZigzag, 16, 4, 2),
            (All{{0, 1}, {2, 3}, {12, 13}, {14, 15}, {4, 5}, {6, 7}, {8, 9}, {10, 11}}));
  EXPECT_EQ(all_positions(kZigzag, 16, 2, 4),
            (All{{0, 1}, {14, 15}, {2, 3}, {12, 13}, {4, 5}, {10, 11}, {6, 7}, {8, 9}}));
  EXPECT_EQ(all_positions(kZigzag, 16, 1, 4), (All{{0, 1, 14, 15}, {2, 3, 12, 13}, {4, 5, 10, 11}, {6, 7, 8, 9}}));
  EXPECT_EQ(all_positions(kStripe, 16, 1, 4)[1], (Positions{1, 5, 9, 13}));
}

// Any length is legal, each token is held exactly once, and shards differ by at most 3 tokens (check 1, second half;
// Ring Self-Attention, check 16).
TEST(Placement, HoldsEveryTokenOnceWhateverTheLength) {
  for (const auto placement : {kContiguous, kZigzag, kStripe}) {
    for (const auto& [u, r] :
         {std::pair{1, 1}, {1, 2}, {2, 1}, {3, 1}, {1, 3}, {2, 2}, {4, 2}, {2, 4}, {1, 5}, {3, 2}}) {
      for (int64_t length = 1; length <= 45; ++length) {
        Positions joined;
        size_t least = SIZE_MAX, most = 0;
        for (const Positions& positions : all_positions(placement, length, u, r)) {
          EXPECT_TRUE(std::is_sorted(positions.begin(), positions.end()));
          joined.insert(joined.end(), positions.begin(), positions.end());
          least = std::min(least, positions.size()), most = std::max(most, positions.size());
        }
        EXPECT_LE(most - least, size_t{3}) << "shares of " << length << " tokens";
        std::sort(joined.begin(), joined.end());
        ASSERT_EQ(joined, range(0, length)) << length << " tokens, ulysses " << u << ", ring " << r;
      }
    }
  }
  // The control: shards by floor division lose the last tokens, and the comparison sees it.
  Positions floored;
  for (int r = 0; r < 4; ++r) {
    for (int64_t i = 0; i < 13 / 4; ++i) floored.push_back(r * (13 / 4) + i);
  }
  EXPECT_NE(floored, range(0, 13));
}

// A table of shards that the Python package also equals (tests/process/python_sequence_test.py), because
// orthant.ring_attention() shards sequences and heads as the engine does.
TEST(Placement, EqualsTheTableOfThePythonPackage) {
  std::ifstream file(ORTHANT_SOURCE_DIR "/tests/golden/sequence_shards.txt");
  int tables = 0;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with('#')) continue;
    std::istringstream words(line);
    std::string kind;
    int64_t first = 0, second = 0;
    int third = 0;
    ASSERT_TRUE(words >> kind >> first >> second >> third) << line;
    std::vector<Positions> shards;
    if (kind == "heads") {
      for (int rank = 0; rank < third; ++rank) {
        const HeadShard heads = head_shard(first, second, third, rank);
        shards.push_back({heads.query.begin, heads.query.end, heads.key.begin, heads.key.end});
      }
    } else {
      shards = all_positions(sequence_placement_of(kind), first, static_cast<int>(second), third);
    }
    std::ostringstream expected;
    expected << kind << ' ' << first << ' ' << second << ' ' << third << " :";
    for (size_t rank = 0; rank < shards.size(); ++rank) {
      if (rank > 0) expected << " |";
      for (const int64_t number : shards[rank]) expected << ' ' << number;
    }
    EXPECT_EQ(line, expected.str());
    ++tables;
  }
  EXPECT_GT(tables, 40);
}

// Number of scores of each rank's queries, by rank and hop. At hop s, rank r has the block of rank r - s.
std::vector<std::vector<int64_t>> scores_by_hop(SequencePlacement placement, int64_t length, int ring) {
  std::vector<std::vector<int64_t>> all(static_cast<size_t>(ring));
  for (int r = 0; r < ring; ++r) {
    const Visibility seen = compute_visibility({}, ring_positions(placement, length, ring, r), length);
    for (int s = 0; s < ring; ++s) {
      int64_t sum = 0;
      for (const auto& tile : attention_tiles(seen, ring_positions(placement, length, ring, (r - s + ring) % ring))) {
        // Masked tiles, in which kernels also compute hidden pairs, have at most 64 keys.
        EXPECT_TRUE(tile.kind != AttentionTile::masked || tile.keys() <= 64);
        sum += tile.scores();
      }
      all[static_cast<size_t>(r)].push_back(sum);
    }
  }
  return all;
}

// Sum over hops of the largest number of scores of any rank. All ranks wait for the slowest one at each hop, because a
// rank passes on a block only after the next one has arrived.
int64_t critical_path(const std::vector<std::vector<int64_t>>& by_hop) {
  int64_t sum = 0;
  for (size_t s = 0; s < by_hop.size(); ++s) {
    int64_t longest = 0;
    for (const auto& rank : by_hop) longest = std::max(longest, rank[s]);
    sum += longest;
  }
  return sum;
}

// The published numbers of scores by placement (Ring Self-Attention, check 15; Unified Sequence Parallelism, check 7
// and the table of section 2.5). Under zigzag all ranks have equal work at every hop.
TEST(Placement, BalancesACausalRing) {
  for (const auto& [ring, zigzag, contiguous] : {std::tuple{2, 264, 392}, {4, 132, 228}, {8, 66, 122}}) {
    const auto by_hop = scores_by_hop(kZigzag, 32, ring);
    for (const auto& rank : by_hop) EXPECT_EQ(std::reduce(rank.begin(), rank.end()), zigzag);
    EXPECT_EQ(critical_path(by_hop), zigzag);
    EXPECT_EQ(critical_path(scores_by_hop(kContiguous, 32, ring)), contiguous);
    const int64_t piece = 32 / (2 * ring);
    for (const auto& rank : by_hop) {
      for (size_t s = 0; s < rank.size(); ++s) EXPECT_EQ(rank[s], s == 0 ? piece * (2 * piece + 1) : 2 * piece * piece);
    }
  }
  const auto stripes = scores_by_hop(kStripe, 64, 8);
  for (size_t r = 0; r < 8; ++r) {
    for (size_t s = 0; s < 8; ++s) EXPECT_EQ(stripes[r][s], s <= r ? 36 : 28) << r << " " << s;
  }
}

// The work of all ranks, in pairs times heads, at 32,768 tokens: equal under zigzag, within 0.1 % under stripe (Unified
// Sequence Parallelism, end of check 7).
TEST(Placement, BalancesTheWorkOfLongSequences) {
  constexpr int64_t kTokens = 32768, kHeads = 32, kKeyHeads = 8;
  const auto spread = [&](SequencePlacement placement, int ulysses, int ring) {
    int64_t least = INT64_MAX, most = 0, all = 0;
    for (const auto& by_hop : scores_by_hop(placement, kTokens, ring)) {
      for (int u = 0; u < ulysses; ++u) {
        const int64_t work =
            std::reduce(by_hop.begin(), by_hop.end()) * head_shard(kHeads, kKeyHeads, ulysses, u).query.size();
        least = std::min(least, work), most = std::max(most, work), all += work;
      }
    }
    EXPECT_EQ(all, kHeads * kTokens * (kTokens + 1) / 2);
    return 1 - static_cast<double>(least) / static_cast<double>(most);
  };
  for (const auto& [ulysses, ring] : {std::pair{8, 1}, {4, 2}, {2, 4}, {1, 8}}) {
    EXPECT_EQ(spread(kZigzag, ulysses, ring), 0);
    EXPECT_LT(spread(kStripe, ulysses, ring), 1e-3);
    // The control: of contiguous parts, the last has 2R-1 times the work of the first.
    EXPECT_NEAR(spread(kContiguous, ulysses, ring), 1 - 1.0 / (2 * ring - 1), 1e-3);
  }
}

// Groups on a mesh of tensor, ulysses, ring and data axes of size 2 (Unified Sequence Parallelism, check 13, section
// 3.6).
TEST(Placement, GroupsAreInTheReferencesOrder) {
  const Mesh mesh({{"tensor", 2}, {"ulysses", 2}, {"ring", 2}, {"data", 2}});
  const auto groups = [&](std::initializer_list<std::string> axes) {
    std::vector<std::vector<int>> all;
    for (int rank = 0; rank < mesh.size(); ++rank) {
      const auto group = mesh.group(rank, axes);
      if (group[0] == rank) all.push_back(group);
    }
    return all;
  };
  EXPECT_EQ(groups({"tensor"})[1], (std::vector<int>{2, 3}));
  EXPECT_EQ(groups({"ulysses"}),
            (std::vector<std::vector<int>>{{0, 2}, {1, 3}, {4, 6}, {5, 7}, {8, 10}, {9, 11}, {12, 14}, {13, 15}}));
  EXPECT_EQ(groups({"ring"}),
            (std::vector<std::vector<int>>{{0, 4}, {1, 5}, {2, 6}, {3, 7}, {8, 12}, {9, 13}, {10, 14}, {11, 15}}));
  EXPECT_EQ(groups({"data", "ulysses", "ring"}),
            (std::vector<std::vector<int>>{{0, 2, 4, 6, 8, 10, 12, 14}, {1, 3, 5, 7, 9, 11, 13, 15}}));
  // Ring Self-Attention, check 5: gradients are summed over the ranks of one stage, which are not adjacent.
  const Mesh staged({{"ring", 2}, {"pipeline", 2}, {"data", 2}});
  EXPECT_EQ(staged.group(0, {"ring", "data"}), (std::vector<int>{0, 1, 4, 5}));
  EXPECT_EQ(staged.group(2, {"ring", "data"}), (std::vector<int>{2, 3, 6, 7}));
}

// num_ring_positions() and num_held_positions() equal the lengths of the lists.
TEST(Placement, IsCountedAsItIsListed) {
  for (const auto placement : {SequencePlacement::contiguous, SequencePlacement::zigzag, SequencePlacement::stripe}) {
    for (const int ulysses : {1, 2, 3}) {
      for (const int ring : {1, 2, 5}) {
        for (const int64_t length : {1, 7, 30, 61}) {
          for (int r = 0; r < ring; ++r) {
            EXPECT_EQ(num_ring_positions(placement, length, ring, r),
                      ring_positions(placement, length, ring, r).size());
            for (int u = 0; u < ulysses; ++u) {
              EXPECT_EQ(num_held_positions(placement, length, ulysses, u, ring, r),
                        held_positions(placement, length, ulysses, u, ring, r).size());
            }
          }
        }
      }
    }
  }
}

// If the length is at least pieces(), every rank has a token.
TEST(Placement, EveryRankHasATokenIfLengthIsAtLeastPieces) {
  for (const auto placement : {kContiguous, kZigzag, kStripe}) {
    for (const auto& [ulysses, ring] : {std::pair{1, 1}, {3, 1}, {1, 4}, {2, 3}, {5, 2}}) {
      const auto fewest = [&](int64_t length) {
        int64_t least = INT64_MAX;
        for (int r = 0; r < ring; ++r) {
          for (int u = 0; u < ulysses; ++u)
            least = std::min(least, num_held_positions(placement, length, ulysses, u, ring, r));
        }
        return least;
      };
      const int64_t enough = pieces(placement, ulysses, ring);
      for (int64_t length = enough; length < enough + 20; ++length) EXPECT_GT(fewest(length), 0) << length;
      // With one token less, some rank has none under contiguous and stripe. Zigzag's pieces() may be larger than that
      // requires, because it counts both parts of a block.
      if (placement != kZigzag || ring == 1) {
        EXPECT_EQ(fewest(enough - 1), 0) << ulysses << " x " << ring;
      }
    }
  }
}

}  // namespace
}  // namespace orthant::placement_test
