// Shares, microbatches and gradient buckets: properties over thousands of sizes.
#include "parallel/data/plan.h"

#include "base/errors.h"
#include "mesh/collective.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace orthant {
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

TEST(DataShare, EverySequenceIsReadOnceInOrder) {
  for (const auto& [global, local, ranks] : many_sizes()) {
    int64_t next = 0;
    for (int coord = 0; coord < ranks; ++coord) {
      const DataShare share = data_share(global, local, ranks, coord);
      ASSERT_EQ(share.sequences.begin, next) << global << " over " << ranks;
      for (const Range& microbatch : share.microbatches) {
        ASSERT_EQ(microbatch.begin, next);
        ASSERT_GE(microbatch.size(), 0);
        ASSERT_LE(microbatch.size(), local) << "more than local_batch_size";
        next = microbatch.end;
      }
      ASSERT_EQ(share.sequences.end, next);
    }
    ASSERT_EQ(next, global);
  }
}

TEST(DataShare, AllRanksRunTheSameNumberOfMicrobatchesAndNoMoreThanNeeded) {
  for (const auto& [global, local, ranks] : many_sizes()) {
    const int count = num_microbatches(global, local, ranks);
    const int64_t largest = (global + ranks - 1) / ranks;
    ASSERT_GE(count * local, largest);
    ASSERT_LT((count - 1) * local, largest);
    for (int coord = 0; coord < ranks; ++coord) {
      ASSERT_EQ(data_share(global, local, ranks, coord).microbatches.size(), static_cast<size_t>(count));
    }
  }
}

TEST(DataShare, SharesAndMicrobatchesAreBalanced) {
  for (const auto& [global, local, ranks] : many_sizes()) {
    int64_t least = global, most = 0;
    for (int coord = 0; coord < ranks; ++coord) {
      const DataShare share = data_share(global, local, ranks, coord);
      least = std::min(least, share.sequences.size());
      most = std::max(most, share.sequences.size());
      int64_t small = global, large = 0;
      for (const Range& microbatch : share.microbatches) {
        small = std::min(small, microbatch.size());
        large = std::max(large, microbatch.size());
      }
      ASSERT_LE(large - small, 1);
    }
    ASSERT_LE(most - least, 1) << global << " over " << ranks;
  }
}

TEST(DataShare, SizesBelowOneAreOurOwnMistake) {
  EXPECT_THROW(num_microbatches(0, 1, 1), LogicError);
  EXPECT_THROW(num_microbatches(1, 0, 1), LogicError);
  EXPECT_THROW(num_microbatches(1, 1, 0), LogicError);
}

// Weights of random sizes behind a bundle, with gaps as alignment leaves them.
struct Flat {
  std::vector<std::pair<int64_t, int64_t>> weights;
  int64_t elements = 0;
};

Flat random_flat(std::mt19937_64& random) {
  Flat flat;
  flat.elements = static_cast<int64_t>(random() % 64);
  const auto count = random() % 40 + 1;
  for (uint64_t i = 0; i < count; ++i) {
    flat.elements = (flat.elements + 31) / 32 * 32;
    const auto size = static_cast<int64_t>(random() % 5 == 0 ? random() % 20000 : random() % 200) + 1;
    flat.weights.emplace_back(flat.elements, size);
    flat.elements += size;
  }
  return flat;
}

TEST(GradientBuckets, TileTheBufferAndCoverEveryWeightOnce) {
  std::mt19937_64 random(11);
  for (int i = 0; i < 5000; ++i) {
    const Flat flat = random_flat(random);
    const auto least = static_cast<int64_t>(random() % 30000 + 1);
    const auto buckets = gradient_buckets(flat.weights, flat.elements, least);
    int64_t element = 0, weight = 0;
    for (size_t b = 0; b < buckets.size(); ++b) {
      const auto& bucket = buckets[b];
      ASSERT_EQ(bucket.elements.begin, element);
      ASSERT_EQ(bucket.weights.begin, weight);
      ASSERT_GT(bucket.weights.size(), 0);
      for (int64_t w = bucket.weights.begin; w < bucket.weights.end; ++w) {
        const auto& [offset, size] = flat.weights[static_cast<size_t>(w)];
        ASSERT_GE(offset, bucket.elements.begin);
        ASSERT_LE(offset + size, bucket.elements.end) << "weight " << w << " is cut by a bucket's border";
      }
      element = bucket.elements.end;
      weight = bucket.weights.end;
    }
    ASSERT_EQ(element, flat.elements);
    ASSERT_EQ(weight, static_cast<int64_t>(flat.weights.size()));
  }
}

TEST(GradientBuckets, AllButTheFirstAreLargeEnoughAndNoneLargerThanItMust) {
  std::mt19937_64 random(12);
  for (int i = 0; i < 5000; ++i) {
    const Flat flat = random_flat(random);
    const auto least = static_cast<int64_t>(random() % 30000 + 1);
    const auto buckets = gradient_buckets(flat.weights, flat.elements, least);
    for (size_t b = 1; b < buckets.size(); ++b) {
      const auto& bucket = buckets[b];
      ASSERT_GE(bucket.elements.size(), least);
      // Without its first weight it would have been too small.
      const int64_t second = bucket.weights.begin + 1;
      const int64_t without = second == bucket.weights.end
                                  ? 0
                                  : bucket.elements.end - flat.weights[static_cast<size_t>(second)].first;
      ASSERT_LT(without, least);
    }
  }
}

TEST(GradientBuckets, OneBucketWhereTheBufferIsSmall) {
  const std::vector<std::pair<int64_t, int64_t>> weights = {{32, 10}, {64, 100}, {192, 5}};
  const auto buckets = gradient_buckets(weights, 197, 1000);
  ASSERT_EQ(buckets.size(), 1u);
  EXPECT_EQ(buckets[0].elements.begin, 0);  // the bundle in front of the first weight travels along
  EXPECT_EQ(buckets[0].elements.end, 197);
  EXPECT_EQ(buckets[0].weights.size(), 3);
}

TEST(ReductionBytes, AreThoseOfOneAllReduceAmongAllTheRanks) {
  const std::vector<std::string> axes = {"data", "ulysses"};
  for (const int ulysses : {1, 2, 3}) {
    for (const int data : {1, 2, 3, 4, 8}) {
      const Mesh mesh({{"tensor", 2}, {"ulysses", ulysses}, {"data", data}});
      const int ranks = ulysses * data;
      for (const int64_t elements : {1, 7, 1000, 12345}) {
        const GradientBucket bucket{{0, elements}, {0, 1}};
        int64_t sum = 0;
        for (int rank = 0; rank < mesh.size(); rank += 2) sum += reduction_bytes(mesh, axes, bucket, 4, rank);
        EXPECT_EQ(sum, 2 * (ranks - 1) * elements * 4);  // 2 (n-1)/n of the bytes, n times
      }
    }
  }
}

}  // namespace
}  // namespace orthant
