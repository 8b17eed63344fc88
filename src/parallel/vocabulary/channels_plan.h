// Numbers of the channels (Comm::channel()) that carry the vocabulary layers' collectives: one for each line of the
// table in schedule/barriers.h.
#pragma once

#include <vector>

namespace orthant {

inline constexpr int kOutputInputChannel = 1, kStatisticsChannel = 2, kExponentialsChannel = 3,
                     kOutputGradientChannel = 4;
inline constexpr int kEmbeddingChannel = 5, kEmbeddingGradientChannel = 6;

/// The channels of an algorithm with one or two rounds of statistics.
inline std::vector<int> vocabulary_channels(int rounds) {
  std::vector<int> channels{kOutputInputChannel, kStatisticsChannel, kOutputGradientChannel, kEmbeddingChannel,
                            kEmbeddingGradientChannel};
  if (rounds == 2) channels.push_back(kExponentialsChannel);
  return channels;
}

}  // namespace orthant
