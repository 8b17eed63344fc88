// Numbers of the channels (Comm::lane()) that carry the vocabulary layers' collectives: one for each line of the table
// in schedule/barriers.h.
#pragma once

namespace orthant {

inline constexpr int kOutputInputLane = 1, kStatisticsLane = 2, kExponentialsLane = 3, kOutputGradientLane = 4;
inline constexpr int kEmbeddingLane = 5, kEmbeddingGradientLane = 6;

}  // namespace orthant
