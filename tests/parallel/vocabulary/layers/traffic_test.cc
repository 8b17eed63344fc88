// The output layer sends exactly the planned bytes and calls. The control plans one token more.
#include "tests/parallel/vocabulary/layers/output_layer.h"

namespace orthant::traffic_test {
namespace {

TrafficTable table(const std::vector<std::vector<Messages>>& microbatches) {
  TrafficTable sum;
  for (const auto& messages : microbatches) {
    for (const Messages& one : messages) {
      Traffic& traffic = sum[{one.axis, one.collective}];
      traffic.calls += one.calls;
      traffic.bytes += one.bytes;
    }
  }
  return sum;
}

TEST(OutputTraffic, IsWhatThePlanSays) {
  const OutputInputs in = output_inputs(37, 12, 101);
  for (const std::string& algorithm : kAlgorithms) {
    for (const int ranks : {1, 2, 3, 5}) {
      for (const auto type : {at::kDouble, at::kBFloat16}) {
        for (const double smoothing : {0.0, 0.1}) {
          const OutputCase c{.algorithm = algorithm, .slices = even_slices(101, ranks),
                             .loss = {.smoothing = smoothing}, .type = type, .root = ranks / 2};
          const OutputResult result = over_ranks(c, in);
          for (int rank = 0; rank < ranks; ++rank) {
            const auto of = [&](int64_t tokens) {
              return output_traffic(vocabulary_algorithm(algorithm), c.loss,
                                    {.tokens = tokens, .stream = tokens * 12,
                                     .element_bytes = type == at::kDouble ? 8 : 2, .ranks = ranks, .root = c.root},
                                    rank);
            };
            EXPECT_EQ(result.traffic[static_cast<size_t>(rank)], table({of(19), of(18)}))
                << algorithm << ", rank " << rank << " of " << ranks;
            if (ranks > 1) {
              EXPECT_NE(table({of(19), of(18)}), table({of(19), of(19)})) << "a token more";
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace orthant::traffic_test
