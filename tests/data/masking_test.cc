// Masking of tokens for the masked objective: the rates of BERT, independent positions, and a result that depends only
// on key, sample and position. Statistical bounds are 4 standard deviations.
#include "data/masking.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <vector>

#include "base/labels.h"

namespace orthant::masking_test {
namespace {

constexpr int64_t kMask = 5000, kLength = 512;

struct Sample {
  std::vector<int64_t> tokens, labels;
};

/// Tokens that all differ from one another and from the mask token.
std::vector<int64_t> plain(int64_t length) {
  std::vector<int64_t> tokens;
  for (int64_t place = 0; place < length; ++place) tokens.push_back(place * 7 % 4999);
  return tokens;
}

Sample masked(const Masking& masking, int64_t number, int64_t length = kLength) {
  Sample sample{plain(length), std::vector<int64_t>(static_cast<size_t>(length), 0)};
  mask_tokens(masking, number, sample.tokens, sample.labels);
  return sample;
}

void expect_share(int64_t count, int64_t of, double share) {
  const double n = static_cast<double>(of), sigma = std::sqrt(n * share * (1 - share));
  EXPECT_NEAR(static_cast<double>(count), n * share, 4 * sigma) << count << " of " << of;
}

TEST(Masking, ChoosesAndReplacesAtBertsRates) {
  for (const double share : {0.15, 0.4}) {
    const Masking masking{.fraction = share, .mask_token = kMask, .key = 11};
    int64_t all = 0, chosen = 0, hidden = 0, random = 0;
    std::map<int64_t, int64_t> quarters;  // quarters of the vocabulary that the random tokens fall into
    for (int64_t number = 0; number < 2000; ++number) {
      const Sample sample = masked(masking, number);
      const auto tokens = plain(kLength);
      for (size_t i = 0; i < tokens.size(); ++i) {
        ++all;
        if (sample.labels[i] == kIgnoredLabel) {
          EXPECT_EQ(sample.tokens[i], tokens[i]);
          continue;
        }
        EXPECT_EQ(sample.labels[i], tokens[i]);
        ++chosen;
        hidden += sample.tokens[i] == kMask;
        if (sample.tokens[i] == kMask || sample.tokens[i] == tokens[i]) continue;
        ++random;
        ++quarters[sample.tokens[i] / (kMask / 4)];
      }
    }
    expect_share(chosen, all, share);
    expect_share(hidden, chosen, 0.8);
    expect_share(random, chosen, 0.1 * (kMask - 1) / kMask);
    ASSERT_EQ(quarters.size(), 4u);
    for (const auto& [quarter, count] : quarters) expect_share(count, random, 0.25);
  }
}

TEST(Masking, ChoosesPositionsIndependently) {
  const Masking masking{.fraction = 0.15, .mask_token = kMask, .key = 12};
  constexpr int64_t kSamples = 20000, kPlaces = 16;
  std::vector<int64_t> again(kPlaces), together(kPlaces * kPlaces);
  Sample before = masked(masking, 0, kPlaces);
  for (int64_t number = 1; number <= kSamples; ++number) {
    const Sample sample = masked(masking, number, kPlaces);
    for (size_t i = 0; i < kPlaces; ++i) {
      if (sample.labels[i] == kIgnoredLabel) continue;
      again[i] += before.labels[i] != kIgnoredLabel;
      for (size_t j = 0; j < kPlaces; ++j) together[i * kPlaces + j] += sample.labels[j] != kIgnoredLabel;
    }
    before = sample;
  }
  for (size_t i = 0; i < kPlaces; ++i) {
    expect_share(again[i], kSamples, 0.15 * 0.15);
    for (size_t j = 0; j < kPlaces; ++j) expect_share(together[i * kPlaces + j], kSamples, i == j ? 0.15 : 0.15 * 0.15);
  }
}

TEST(Masking, IsAFunctionOfKeySampleAndPosition) {
  const Masking masking{.fraction = 0.15, .mask_token = kMask, .key = 13};
  const Sample sample = masked(masking, 77);
  EXPECT_EQ(masked(masking, 77).tokens, sample.tokens);
  EXPECT_EQ(masked(masking, 77).labels, sample.labels);
  EXPECT_NE(masked(masking, 78).labels, sample.labels);
  EXPECT_NE(masked({.fraction = 0.15, .mask_token = kMask, .key = 14}, 77).labels, sample.labels);
  // A shorter sample equals the beginning of a longer one.
  const Sample shorter = masked(masking, 77, 101);
  EXPECT_EQ(shorter.tokens, std::vector<int64_t>(sample.tokens.begin(), sample.tokens.begin() + 101));
  EXPECT_EQ(shorter.labels, std::vector<int64_t>(sample.labels.begin(), sample.labels.begin() + 101));
  // The choice does not depend on the tokens either.
  std::vector<int64_t> others(kLength, 3), labels(kLength);
  mask_tokens(masking, 77, others, labels);
  for (size_t i = 0; i < kLength; ++i) EXPECT_EQ(labels[i] == kIgnoredLabel, sample.labels[i] == kIgnoredLabel);
}

TEST(Masking, CountsWhatItChooses) {
  bool nothing = false;
  for (const double share : {1e-9, 0.15, 1.0}) {
    const Masking masking{.fraction = share, .mask_token = kMask, .key = 15};
    for (int64_t number = 0; number < 50; ++number) {
      for (const int64_t length : {0, 1, 3, 4, 63}) {
        int64_t labels = 0;
        for (const int64_t label : masked(masking, number, length).labels) labels += label != kIgnoredLabel;
        EXPECT_EQ(count_masked_positions(masking, number, length), labels);
        nothing = nothing || (length > 0 && labels == 0);
        EXPECT_TRUE(share < 1.0 || labels == length);
      }
    }
  }
  EXPECT_TRUE(nothing);
}

}  // namespace
}  // namespace orthant::masking_test
