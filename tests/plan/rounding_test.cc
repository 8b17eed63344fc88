// The bound of Muon's weights on a GPU: far above the rounding of its products, and far below an update that is
// missing.
#include "plan/rounding.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace orthant {
namespace {

double weight_bound(const std::string& device, const std::string& optimizer) {
  const std::vector<std::string> words = {"run.ranks=1",        "run.device=" + device,   "optimizer.name=" + optimizer,
                                          "optimizer.lr=0.001", "training.dtype=float32", "model.vocab_size=256"};
  const Config config = parse_config("", "run.toml", words);
  return rounding_bounds(make_plan(config, {.ranks = 1, .vocab_size = 256})).weights;
}

TEST(RoundingBounds, OfWeightsUpdatedByMuonOnAGpu) {
  EXPECT_EQ(weight_bound("cpu", "muon"), 0);
  EXPECT_EQ(weight_bound("cuda", "adamw"), 0);
  // Weights have a standard deviation of 0.02 or less, and elements of an update a root mean square of 0.2 lr. An H100
  // differed by 5e-8.
  constexpr double kUpdate = 0.2 * 0.001 / 0.02;
  EXPECT_GT(weight_bound("cuda", "muon"), 1e-6);
  EXPECT_LT(weight_bound("cuda", "muon"), kUpdate / 10);
}

}  // namespace
}  // namespace orthant
