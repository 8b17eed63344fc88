// Numbers of the channels (Comm::channel()) that carry the vocabulary layers' collectives: one for each line of the
// table in schedule/barriers.h.
#pragma once

namespace orthant {

inline constexpr int kOutputInputChannel = 1, kStatisticsChannel = 2, kExponentialsChannel = 3,
                     kOutputGradientChannel = 4;
inline constexpr int kEmbeddingChannel = 5, kEmbeddingGradientChannel = 6;

}  // namespace orthant
