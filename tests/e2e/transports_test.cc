// A training run gives the same bits over UCX and Gloo, with ranks as processes and as threads: equal losses at every
// step, and equal weights and moments at the end.
#include <gtest/gtest.h>

#include "launch/launch.h"
#include "comm/transport.h"
#include "tests/support/says.h"
#include "tests/support/sweep.h"
#include "tests/support/trained.h"

namespace orthant::transports_test {
namespace {

constexpr int64_t kSteps = 10;  // length of the golden curve

void expect_same_bits(const std::string& dtype, int count) {
  SCOPED_TRACE(fmt::format("{}, {} ranks", dtype, count));
  const std::vector<std::string> keys = {fmt::format("training.dtype={}", dtype), fmt::format("run.ranks={}", count),
                                         fmt::format("training.steps={}", kSteps), "parallelism.bucket_mib=0.02"};
  const TinyRun run(keys);
  const auto train_over = [&](const std::string& transport) {
    auto all = keys;
    all.push_back("run.transport=" + transport);
    return train(run, transport, all);
  };
  const auto ucx = train_over("ucx"), gloo = train_over("gloo");
  EXPECT_TRUE(says(ucx.output, {"ucx transport"}));
  EXPECT_TRUE(says(gloo.output, {"gloo transport"}));
  const auto losses = losses_of(ucx);
  ASSERT_EQ(losses.size(), static_cast<size_t>(kSteps));
  EXPECT_EQ(losses_of(gloo), losses);
  EXPECT_TRUE(bytes_of(ucx, kSteps) == bytes_of(gloo, kSteps));

  const auto over_ucx = train_ranks(run.plan(count, {"run.transport=ucx"}), run.data(), {.steps = kSteps});
  const auto over_gloo = train_ranks(run.plan(count, {"run.transport=gloo"}), run.data(), {.steps = kSteps});
  for (size_t step = 0; step < static_cast<size_t>(kSteps); ++step) {
    EXPECT_EQ(over_ucx[0].steps[step].loss, losses[step]) << step;
    EXPECT_EQ(over_gloo[0].steps[step].loss, losses[step]) << step;
  }
  EXPECT_TRUE(over_ucx[0].values.equal(over_gloo[0].values));
}

SWEEP_TEST(Transports, GiveTheSameBits) {
  if (!ucx_problem().empty()) GTEST_SKIP() << ucx_problem();
  std::vector<std::pair<const char*, int>> cases;
  for (const char* dtype : {"float64", "bfloat16"}) {
    for (const int count : {2, 3}) cases.emplace_back(dtype, count);
  }
  for (const auto& [dtype, count] : sweep.of(cases, 2)) expect_same_bits(dtype, count);
}

TEST(Transport, OfTheProgramIsThatWhichTheseTestsAreRunFor) {
  const TinyRun run({"training.steps=1"});
  const std::string usual = ucx_problem().empty() ? "ucx" : "gloo";
  EXPECT_TRUE(says(train(run, "one", {"training.steps=1", "run.ranks=2"}).output,
                   {process_environment("TESTED_TRANSPORT").value_or(usual) + " transport"}));
}

}  // namespace
}  // namespace orthant::transports_test
