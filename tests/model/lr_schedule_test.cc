// Learning rate schedules against tables computed by hand, at the edges of the warmup, and against properties that hold
// for every schedule.
#include "model/lr_schedule.h"

#include "base/errors.h"

#include <gtest/gtest.h>

#include <cmath>

namespace orthant::lr_schedule_test {
namespace {

LrSchedule ten_steps(const std::string& type, int64_t warmup = 2, double ratio = 1.0, double least = 0.1) {
  return {.lr = 2.0,
          .steps = 10,
          .warmup_steps = warmup,
          .decay_type = type,
          .decay_ratio = ratio,
          .min_lr_factor = least};
}

void expect_rates(const LrSchedule& schedule, const std::vector<double>& rates) {
  for (size_t i = 0; i < rates.size(); ++i) {
    EXPECT_NEAR(schedule.at(static_cast<int64_t>(i) + 1), rates[i], 1e-12)
        << schedule.decay_type << ", step " << i + 1;
  }
}

TEST(LrSchedule, Tables) {
  // Two steps of warmup, then eight of decay from 2.0 to 0.2: the progress is 1/8, 2/8, ... 1.
  expect_rates(ten_steps("linear"), {1.0, 2.0, 1.775, 1.55, 1.325, 1.1, 0.875, 0.65, 0.425, 0.2});
  const double c = std::cos(std::acos(-1.0) / 4);  // for progress 2/8, and negated for 6/8
  const LrSchedule cosine = ten_steps("cosine");
  EXPECT_NEAR(cosine.at(4), 0.2 + 1.8 * (1 + c) / 2, 1e-12);
  EXPECT_NEAR(cosine.at(6), 1.1, 1e-12);
  EXPECT_NEAR(cosine.at(8), 0.2 + 1.8 * (1 - c) / 2, 1e-12);
  EXPECT_NEAR(cosine.at(10), 0.2, 1e-12);
  const LrSchedule sqrt = ten_steps("sqrt");
  EXPECT_NEAR(sqrt.at(4), 0.2 + 1.8 * 0.5, 1e-12);  // 1 - sqrt(2/8)
  EXPECT_NEAR(sqrt.at(10), 0.2, 1e-12);
  expect_rates(ten_steps("wsd", 2, 0.2),
               {1.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 0.2 + 1.8 * (1 - std::sqrt(0.5)), 0.2});
  expect_rates(ten_steps("wsd", 2, 0.4), {1.0, 2.0, 2.0, 2.0, 2.0, 2.0, 0.2 + 1.8 * 0.5});
  expect_rates(ten_steps("linear", 2, 0.0), {1.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0});  // no decay
  expect_rates(ten_steps("constant"), {1.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0});
}

// decay_ratio is the fraction of the steps, at the end of the run, in which the rate decays.
TEST(LrSchedule, DecayRatioIsTheFractionAtTheEnd) {
  expect_rates(ten_steps("linear", 2, 0.5, 0.0), {1.0, 2.0, 2.0, 2.0, 2.0, 1.6, 1.2, 0.8, 0.4, 0.0});
  // If this fraction reaches into the warmup, the rate decays over the steps after the warmup.
  expect_rates(ten_steps("linear", 5, 1.0, 0.0), {0.4, 0.8, 1.2, 1.6, 2.0, 1.6, 1.2, 0.8, 0.4, 0.0});
}

TEST(LrSchedule, EdgesOfTheWarmup) {
  for (const char* type : {"cosine", "linear", "sqrt", "wsd", "constant"}) {
    EXPECT_EQ(ten_steps(type, 1).at(1), 2.0) << type;
    EXPECT_EQ(ten_steps(type, 10).at(10), 2.0) << type << ": all of it is warmup";
    EXPECT_NEAR(ten_steps(type, 40).at(10), 0.5, 1e-12) << type << ": warmup longer than the run";
    EXPECT_LE(ten_steps(type, 0).at(1), 2.0) << type;
  }
  EXPECT_NEAR(ten_steps("linear", 0).at(1), 2.0 - 1.8 * 0.1, 1e-12);
  EXPECT_THROW(ten_steps("linear").at(0), LogicError);
}

// The rate rises during the warmup, then never rises again. If it decays, it stays at lr x min_lr_factor after the
// last step.
TEST(LrSchedule, DecaysToTheMinimumAfterTheWarmup) {
  for (const char* type : {"cosine", "linear", "sqrt", "wsd", "constant"}) {
    for (const int64_t steps : {1, 2, 7, 100}) {
      for (const int64_t warmup : {0, 1, 3, 50}) {
        for (const double ratio : {0.0, 0.1, 0.5, 1.0}) {
          const LrSchedule s{.lr = 1, .steps = steps, .warmup_steps = warmup, .decay_type = type, .decay_ratio = ratio,
                             .min_lr_factor = 0.25};
          double before = 0;
          for (int64_t step = 1; step <= steps + 5; ++step) {
            const double rate = s.at(step);
            ASSERT_GT(rate, 0) << type;
            ASSERT_LE(rate, 1) << type;
            if (step <= warmup) {
              ASSERT_GT(rate, before);
            } else if (step > warmup + 1) {
              ASSERT_LE(rate, before);
            }
            if (step >= steps && step > warmup && ratio >= 0.1 && std::string(type) != "constant" && steps >= 7) {
              ASSERT_NEAR(rate, 0.25, 1e-12) << type << ", " << steps << " steps, " << warmup << ", " << ratio;
            }
            before = rate;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace orthant::lr_schedule_test
