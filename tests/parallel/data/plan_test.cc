// Data shards, microbatches and gradient buckets: their laws hold for thousands of sizes. The bytes of the reduction
// equal the formula of one ring all-reduce.
#include "parallel/data/plan.h"

#include "base/errors.h"
#include "base/exact_sum.h"
#include "mesh/collective.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace orthant::plan_test {
namespace {

struct Sizes {
  int64_t global_batch, local_batch;
  int ranks;
};

std::vector<Sizes> many_sizes() {
  std::vector<Sizes> all;
  for (int64_t global = 1; global <= 40; ++global) {
    for (const int64_t local : {1, 2, 3, 5, 8, 64}) {
      for (const int ranks : {1, 2, 3, 4, 7, 8, 16}) all.push_back({global, local, ranks});
    }
  }
  std::mt19937_64 random(5);
  for (int i = 0; i < 2000; ++i) {
    all.push_back({static_cast<int64_t>(random() % 5000 + 1), static_cast<int64_t>(random() % 64 + 1),
                   static_cast<int>(random() % 300 + 1)});
  }
  return all;
}

TEST(DataShard, EverySequenceIsReadOnceInOrder) {
  for (const auto& [global, local, ranks] : many_sizes()) {
    int64_t next = 0;
    for (int coord = 0; coord < ranks; ++coord) {
      const DataShard data_shard = make_data_shard(global, local, ranks, coord);
      ASSERT_EQ(data_shard.sequences.begin, next) << global << " over " << ranks;
      for (const Range& microbatch : data_shard.microbatches) {
        ASSERT_EQ(microbatch.begin, next);
        ASSERT_GE(microbatch.size(), 0);
        ASSERT_LE(microbatch.size(), local) << "more than local_batch_size";
        next = microbatch.end;
      }
      ASSERT_EQ(data_shard.sequences.end, next);
    }
    ASSERT_EQ(next, global);
  }
}

// The number of microbatches is the least that the largest shard needs.
TEST(DataShard, AllRanksRunTheSameNumberOfMicrobatchesAndNoMoreThanNeeded) {
  for (const auto& [global, local, ranks] : many_sizes()) {
    const int count = num_microbatches(global, local, ranks);
    const int64_t largest = (global + ranks - 1) / ranks;
    ASSERT_GE(count * local, largest);
    ASSERT_LT((count - 1) * local, largest);
    for (int coord = 0; coord < ranks; ++coord) {
      ASSERT_EQ(make_data_shard(global, local, ranks, coord).microbatches.size(), static_cast<size_t>(count));
    }
  }
}

// The shards of the batch differ by at most one sequence, as do the microbatches of a shard.
TEST(DataShard, ShardsAndMicrobatchesAreBalanced) {
  for (const auto& [global, local, ranks] : many_sizes()) {
    int64_t least = global, most = 0;
    for (int coord = 0; coord < ranks; ++coord) {
      const DataShard data_shard = make_data_shard(global, local, ranks, coord);
      least = std::min(least, data_shard.sequences.size());
      most = std::max(most, data_shard.sequences.size());
      int64_t small = global, large = 0;
      for (const Range& microbatch : data_shard.microbatches) {
        small = std::min(small, microbatch.size());
        large = std::max(large, microbatch.size());
      }
      ASSERT_LE(large - small, 1);
    }
    ASSERT_LE(most - least, 1) << global << " over " << ranks;
  }
}

TEST(DataShard, SizesBelowOneAreOurOwnMistake) {
  EXPECT_THROW(num_microbatches(0, 1, 1), LogicError);
  EXPECT_THROW(num_microbatches(1, 0, 1), LogicError);
  EXPECT_THROW(num_microbatches(1, 1, 0), LogicError);
}

// A flat buffer of weights with random sizes in random regions. It begins with some unused elements and has the gaps
// that alignment leaves.
struct Flat {
  std::vector<std::pair<int64_t, int64_t>> weights;
  std::vector<int> region_of;
  std::vector<GradientRegion> regions;
  int64_t elements = 0;
};

Flat random_flat(std::mt19937_64& random) {
  Flat flat;
  const auto count = random() % 40 + 1;
  const int most_regions = static_cast<int>(random() % 3) + 1;
  flat.weights.resize(count);
  for (uint64_t i = 0; i < count; ++i)
    flat.region_of.push_back(static_cast<int>(random() % static_cast<uint64_t>(most_regions)));
  int64_t begin = 0;
  flat.elements = static_cast<int64_t>(random() % 64);
  for (int r = 0; r < most_regions; ++r) {
    for (uint64_t i = 0; i < count; ++i) {
      if (flat.region_of[i] != r) continue;
      flat.elements = (flat.elements + 31) / 32 * 32;
      flat.weights[i] = {flat.elements,
                         static_cast<int64_t>(random() % 5 == 0 ? random() % 20000 : random() % 200) + 1};
      flat.elements += flat.weights[i].second;
    }
    flat.regions.push_back({{begin, flat.elements}, {fmt::format("axis_{}", r)}});
    begin = flat.elements;
  }
  return flat;
}

// Each weight lies in one bucket. Buckets do not overlap, lie in one region each, and are ordered from the last to the
// first that backward completes.
TEST(GradientBuckets, TileTheBufferAndCoverEveryWeightOnce) {
  std::mt19937_64 random(11);
  for (int i = 0; i < 5000; ++i) {
    const Flat flat = random_flat(random);
    const auto least = static_cast<int64_t>(random() % 30000 + 1);
    const auto buckets = gradient_buckets(flat.weights, flat.regions, least);
    std::vector<int> seen(flat.weights.size());
    std::vector<Range> tiles;
    int last = -1;
    for (const auto& bucket : buckets) {
      ASSERT_FALSE(bucket.weights.empty());
      ASSERT_GT(bucket.weights.front(), last)
          << "backward completes a bucket with its first weight, the last one first";
      last = bucket.weights.front();
      for (const int w : bucket.weights) {
        const auto& [offset, size] = flat.weights[static_cast<size_t>(w)];
        ASSERT_GE(offset, bucket.elements.begin);
        ASSERT_LE(offset + size, bucket.elements.end) << "weight " << w << " is cut by a bucket's border";
        ASSERT_EQ(bucket.axes, flat.regions[static_cast<size_t>(flat.region_of[static_cast<size_t>(w)])].axes);
        ++seen[static_cast<size_t>(w)];
      }
      tiles.push_back(bucket.elements);
    }
    ASSERT_EQ(seen, std::vector<int>(seen.size(), 1));
    std::sort(tiles.begin(), tiles.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
    // The buckets cover all regions except those without weights.
    int64_t covered = 0, regions = 0;
    for (size_t t = 0; t < tiles.size(); ++t) {
      ASSERT_GE(tiles[t].begin, t > 0 ? tiles[t - 1].end : 0);
      covered += tiles[t].size();
    }
    for (size_t r = 0; r < flat.regions.size(); ++r) {
      const bool used = std::count(flat.region_of.begin(), flat.region_of.end(), static_cast<int>(r)) > 0;
      if (used) regions += flat.regions[r].elements.size();
    }
    ASSERT_EQ(covered, regions);
  }
}

// A bucket has at least `least` elements, but fewer than that without its first weight. The first bucket of a region
// has the rest of the region and may be smaller.
TEST(GradientBuckets, HaveTheMinimumSizeExceptTheFirstOfARegion) {
  std::mt19937_64 random(12);
  for (int i = 0; i < 5000; ++i) {
    const Flat flat = random_flat(random);
    const auto least = static_cast<int64_t>(random() % 30000 + 1);
    for (const auto& bucket : gradient_buckets(flat.weights, flat.regions, least)) {
      const auto& region =
          flat.regions[static_cast<size_t>(flat.region_of[static_cast<size_t>(bucket.weights.front())])];
      if (bucket.elements.begin == region.elements.begin) continue;  // the rest of the region
      ASSERT_GE(bucket.elements.size(), least);
      // Without its first weight it would have been too small.
      const int64_t without = bucket.weights.size() == 1
                                  ? 0
                                  : bucket.elements.end - flat.weights[static_cast<size_t>(bucket.weights[1])].first;
      ASSERT_LT(without, least);
    }
  }
}

// A weight that must be alone has a bucket of its own, wherever it lies; the other laws stay.
TEST(GradientBuckets, KeepWeightsAloneThatMustBe) {
  std::mt19937_64 random(13);
  for (int i = 0; i < 2000; ++i) {
    const Flat flat = random_flat(random);
    const int one = static_cast<int>(random() % flat.weights.size());
    const auto least = static_cast<int64_t>(random() % 30000 + 1);
    const auto buckets = gradient_buckets(flat.weights, flat.regions, least, {one});
    size_t weights = 0;
    for (const auto& bucket : buckets) {
      weights += bucket.weights.size();
      if (std::ranges::count(bucket.weights, one) == 0) continue;
      ASSERT_EQ(bucket.weights, std::vector<int>{one});
    }
    ASSERT_EQ(weights, flat.weights.size());
  }
}

// Chunks tile the bucket in order, no block of a parameter has two owners, and each cut differs from an equal division
// by at most half a block. A block may be a whole parameter. The control cuts inside a block.
TEST(ChunkCuts, TileTheBucketInWholeBlocks) {
  std::mt19937_64 random(14);
  const auto splits_a_block = [](const std::vector<int64_t>& cuts, const std::vector<ParameterBlocks>& parameters) {
    for (const int64_t cut : cuts) {
      for (const auto& [p, block] : parameters) {
        if (p.begin < cut && cut < p.end && (cut - p.begin) % block != 0) return true;
      }
    }
    return false;
  };
  for (int i = 0; i < 3000; ++i) {
    Range elements{static_cast<int64_t>(random() % 1000), 0};
    std::vector<ParameterBlocks> parameters;
    int64_t largest = kNormBlockElements;
    elements.end = elements.begin;
    for (uint64_t p = random() % 6 + 1; p-- > 0;) {
      const int64_t begin = elements.end + static_cast<int64_t>(random() % 2 * 32);
      elements.end = begin + static_cast<int64_t>(random() % 5000 + 1);
      const bool whole = random() % 3 == 0;
      parameters.push_back({{begin, elements.end}, whole ? elements.end - begin : kNormBlockElements});
      largest = std::max(largest, parameters.back().block_elements);
    }
    const int ranks = static_cast<int>(random() % 9 + 1);
    const std::vector<int64_t> none(static_cast<size_t>(ranks));
    const std::vector<int64_t> cuts = chunk_cuts(elements, parameters, none);
    ASSERT_EQ(cuts.size(), static_cast<size_t>(ranks) + 1);
    ASSERT_EQ(cuts.front(), elements.begin);
    ASSERT_EQ(cuts.back(), elements.end);
    ASSERT_TRUE(std::ranges::is_sorted(cuts));
    ASSERT_FALSE(splits_a_block(cuts, parameters));
    for (int k = 1; k < ranks; ++k) {
      const int64_t equal = elements.begin + elements.size() * k / ranks;
      ASSERT_LE(std::abs(cuts[static_cast<size_t>(k)] - equal), (largest + 1) / 2);
    }
  }
  const std::vector<ParameterBlocks> one = {{{0, 1000}, kNormBlockElements}};
  EXPECT_EQ(chunk_cuts({0, 1000}, one, std::vector<int64_t>(3)), (std::vector<int64_t>{0, 256, 768, 1000}));
  EXPECT_TRUE(splits_a_block({0, 300, 1000}, one));
}

// Buckets of one indivisible matrix each go to different positions: after any number of them, the loads of two
// positions differ by at most the largest matrix. The control divides each bucket as if it were the first.
TEST(ChunkCuts, BalanceMatricesThatOnePositionMustHave) {
  std::mt19937_64 random(15);
  for (const bool balances : {true, false}) {
    std::vector<int64_t> loads(5);
    int64_t largest = 0;
    for (int bucket = 0; bucket < 200; ++bucket) {
      const Range elements{0, static_cast<int64_t>(random() % 100000 + 1)};
      const std::vector<ParameterBlocks> matrix = {{elements, elements.size()}};
      const auto cuts = chunk_cuts(elements, matrix, balances ? loads : std::vector<int64_t>(5));
      for (size_t i = 0; i < loads.size(); ++i) loads[i] += cuts[i + 1] - cuts[i];
      largest = std::max(largest, elements.size());
    }
    const auto [least, most] = std::ranges::minmax(loads);
    EXPECT_EQ(most - least <= largest, balances) << most << " and " << least;
  }
}

TEST(GradientBuckets, SmallBufferIsOneBucket) {
  const std::vector<std::pair<int64_t, int64_t>> weights = {{32, 10}, {64, 100}, {192, 5}};
  const GradientRegion all[] = {{{0, 197}, {"data"}}};
  const auto buckets = gradient_buckets(weights, all, 1000);
  ASSERT_EQ(buckets.size(), 1u);
  EXPECT_EQ(buckets[0].elements.begin, 0);  // includes the elements before the first weight
  EXPECT_EQ(buckets[0].elements.end, 197);
  EXPECT_EQ(buckets[0].weights.size(), 3u);
}

// placed() keeps the weights of each bucket on a rank with other shard sizes, because ranks must agree on them. The
// control: buckets grouped by that rank's own sizes differ.
TEST(GradientBuckets, HoldTheSameWeightsOnEveryRank) {
  // Weights 1 and 3 are sharded over "ring"; another rank has smaller shards of them.
  const std::vector<std::pair<int64_t, int64_t>> here = {{32, 10}, {192, 64}, {64, 100}, {256, 40}};
  const std::vector<std::pair<int64_t, int64_t>> there = {{32, 10}, {192, 32}, {64, 100}, {224, 20}};
  const GradientRegion regions[] = {{{0, 164}, {"data", "ring"}}, {{164, 296}, {"data"}}};
  const GradientRegion smaller[] = {{{0, 164}, {"data", "ring"}}, {{164, 244}, {"data"}}};
  const auto buckets = gradient_buckets(here, regions, 40);
  ASSERT_EQ(buckets.size(), 4u);
  const auto on_the_other = placed(buckets, there, smaller);
  for (size_t b = 0; b < buckets.size(); ++b) EXPECT_EQ(on_the_other[b].weights, buckets[b].weights);
  EXPECT_EQ(on_the_other[0].elements, (Range{0, 64}));
  EXPECT_EQ(on_the_other[1].elements, (Range{164, 224}));
  EXPECT_EQ(on_the_other[2].elements, (Range{64, 164}));
  EXPECT_EQ(on_the_other[3].elements, (Range{224, 244}));
  EXPECT_EQ(gradient_buckets(there, smaller, 40).size(), 3u) << "cut by its own sizes, it would not agree";
}

TEST(ReductionBytes, EqualOneAllReduceOverAllAxes) {
  const std::vector<std::string> axes = {"data", "ulysses"};
  for (const int ulysses : {1, 2, 3}) {
    for (const int data : {1, 2, 3, 4, 8}) {
      const Mesh mesh({{"tensor", 2}, {"ulysses", ulysses}, {"data", data}});
      const int ranks = ulysses * data;
      for (const int64_t elements : {1, 7, 1000, 12345}) {
        const GradientBucket bucket{{0, elements}, {0}, axes};
        int64_t sum = 0;
        for (int rank = 0; rank < mesh.size(); rank += 2) sum += reduction_bytes(mesh, bucket, 4, rank).sent;
        EXPECT_EQ(sum, 2 * (ranks - 1) * elements * 4);  // each of n ranks sends 2 (n-1)/n of the bytes
      }
    }
  }
}

// The formula holds for any number of ranks, even if a rank's shard of the sum has few elements or none. Two steps
// could send less then, but the gradient reducer runs one all-reduce.
TEST(ReductionBytes, EqualOneAllReduceForAnyNumberOfRanks) {
  for (const int ranks : {2, 3, 64, 4096, 10000, 65536}) {
    const Mesh mesh({{"data", ranks}});
    for (const int64_t elements : {1, 1000, 123457, 10000000}) {
      const GradientBucket bucket{{0, elements}, {0}, {"data"}};
      int64_t sum = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        const int64_t bytes = reduction_bytes(mesh, bucket, 4, rank).sent;
        EXPECT_EQ(bytes, 4 * (elements + (ranks - 2) * shard(elements, ranks, rank).size())) << ranks;
        sum += bytes;
      }
      EXPECT_EQ(sum, 2 * int64_t{ranks - 1} * elements * 4) << ranks;
    }
  }
}

}  // namespace
}  // namespace orthant::plan_test
