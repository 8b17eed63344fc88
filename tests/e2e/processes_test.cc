// Runs of the real program, with ranks as processes, equal three others in every bit: the same run with ranks as
// threads, a second run, and a run that was stopped and resumed. The control is another learning rate.
#include <gtest/gtest.h>

#include "tests/support/sweep.h"
#include "tests/support/trained.h"

namespace orthant::processes_test {
namespace {

std::string raw_bytes(const at::Tensor& t) { return {static_cast<const char*>(t.const_data_ptr()), t.nbytes()}; }

void expect_equal_bits(const std::string& dtype, int count) {
  SCOPED_TRACE(fmt::format("{}, {} ranks", dtype, count));
  const std::vector<std::string> keys = {fmt::format("training.dtype={}", dtype), fmt::format("run.ranks={}", count),
                                         "training.steps=6", "model.dropout=0.1", "parallelism.bucket_mib=0.02"};
  const TinyRun run(keys);
  const auto whole = train(run, "whole", keys);

  const auto threads = train_ranks(run.plan(count), run.data(), {.steps = 6}).front();
  std::vector<double> losses;
  for (const auto& step : threads.steps) losses.push_back(step.loss);
  EXPECT_EQ(losses_of(whole), losses);
  const auto stored = bytes_of(whole, 6);
  const Plan plan = run.plan(count);
  const FlatLayout flat = flat_layout(plan.parameters);
  for (size_t p = 0; p < plan.parameters.size(); ++p) {
    auto part = [&](const at::Tensor& t) {
      return raw_bytes(t.narrow(0, flat.parameter_offsets[p], plan.parameters[p].size()));
    };
    EXPECT_TRUE(stored.at(plan.parameters[p].name) == part(threads.values)) << plan.parameters[p].name;
    EXPECT_TRUE(stored.at("exp_avg." + plan.parameters[p].name) == part(threads.optimizer_state[0]));
    EXPECT_TRUE(stored.at("exp_avg_sq." + plan.parameters[p].name) == part(threads.optimizer_state[1]));
  }

  // The learning-rate schedule must be that of the full run. The second run therefore trains all 6 steps with
  // checkpoints on the way, and the test then removes everything after step 3.
  auto halves = keys;
  halves.push_back("checkpoint.interval=3");
  const auto half = train(run, "half", halves);
  EXPECT_TRUE(bytes_of(half, 6) == stored) << "run to run";
  std::filesystem::remove_all(half.folder + "/checkpoints/step-000006");
  std::filesystem::remove(half.folder + "/checkpoints/latest");
  std::filesystem::create_directory_symlink("step-000003", half.folder + "/checkpoints/latest");
  halves.push_back("--resume");
  train(run, "half", halves);
  EXPECT_EQ(losses_of(half), losses);
  EXPECT_TRUE(bytes_of(half, 6) == stored) << "resumed";
}

SWEEP_TEST(Processes, EqualThreadsAndAResumedRunInEveryBit) {
  std::vector<std::pair<const char*, int>> cases;
  for (const char* dtype : {"float32", "bfloat16", "float64"}) {
    for (const int count : {1, 2, 3}) cases.emplace_back(dtype, count);
  }
  for (const auto& [dtype, count] : sweep.of(cases, 3)) expect_equal_bits(dtype, count);
}

TEST(Processes, OtherDataIsOtherBits) {
  const TinyRun run({"training.steps=3"});
  const auto one = train(run, "one", {"training.steps=3", "run.ranks=2"});
  const auto other = train(run, "other", {"training.steps=3", "run.ranks=2", "optimizer.lr=0.0031"});
  EXPECT_FALSE(bytes_of(one, 3) == bytes_of(other, 3));
}

}  // namespace
}  // namespace orthant::processes_test
