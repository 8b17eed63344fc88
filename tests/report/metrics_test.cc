// metrics.jsonl: the documented fields, numbers that read back bit-equal, one history after a resumption, and errors
// that name file and line.
#include "report/metrics.h"

#include "base/errors.h"
#include "tests/support/says.h"
#include "tests/support/temp_folder.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

namespace orthant::metrics_test {
namespace {

class MetricsFile : public testing::Test {
 protected:
  std::string content() const { return slurp(path_); }
  void put(const std::string& text) const { spill(path_, text); }

  TempFolder folder_;
  std::string path_ = folder_ / "metrics.jsonl";
};

StepMetrics some_step(int64_t step) {
  return {.step = step,
          .loss = 5.0 / static_cast<double>(step),
          .grad_norm = 0.1,
          .lr = 1e-3,
          .tokens = 512 * step,
          .step_seconds = 0.25,
          .tokens_per_second = 2048,
          .mfu = 0.5,
          .peak_memory_bytes = 1 << 20,
          .communication_seconds = 0.01,
          .communication_bytes = 4096,
          .received_bytes = 8192,
          .communication_calls = 3,
          .data_seconds = 0.001};
}

TEST_F(MetricsFile, LineHasTheDocumentedFields) {
  EXPECT_EQ(to_json_line(some_step(2)),
            R"({"step": 2, "loss": 2.5, "grad_norm": 0.1, "lr": 0.001, "tokens": 1024, "step_seconds": 0.25, )"
            R"("tokens_per_second": 2048, "mfu": 0.5, "peak_memory_bytes": 1048576, "communication_seconds": 0.01, )"
            R"("communication_bytes": 4096, "received_bytes": 8192, "communication_calls": 3, "data_seconds": 0.001})"
            "\n");
  EXPECT_EQ(to_json_line(ValidationMetrics{7, 2.25, 1.5}),
            "{\"step\": 7, \"validation_loss\": 2.25, \"bits_per_byte\": 1.5}\n");
  const ValidationMetrics with_sets{
      .step = 7, .validation_loss = 2.25, .bits_per_byte = 1.5, .sets = {{"a \"b\"", 2, 1}, {"c", 3, std::nan("")}}};
  const std::string line = to_json_line(with_sets);
  EXPECT_EQ(line,
            "{\"step\": 7, \"validation_loss\": 2.25, \"bits_per_byte\": 1.5, \"sets\": {\"a \\\"b\\\"\": "
            "{\"validation_loss\": 2, \"bits_per_byte\": 1}, \"c\": {\"validation_loss\": 3, "
            "\"bits_per_byte\": null}}}\n");
  std::ofstream(path_) << line;
  const ValidationMetrics again = read_metrics(path_).validations.at(0);
  ASSERT_EQ(again.sets.size(), 2u);
  EXPECT_EQ(again.sets[0].name, "a \"b\"");
  EXPECT_EQ(again.sets[1].validation_loss, 3);
  EXPECT_TRUE(std::isnan(again.sets[1].bits_per_byte));
}

TEST_F(MetricsFile, NumbersReadBackBitEqual) {
  std::mt19937_64 random(5);
  std::vector<StepMetrics> written;
  {
    MetricsWriter writer(path_);
    for (int64_t step = 1; step <= 200; ++step) {
      StepMetrics m = some_step(step);
      for (double* value : {&m.loss, &m.grad_norm, &m.lr, &m.step_seconds}) {
        *value = std::ldexp(static_cast<double>(random()), static_cast<int>(random() % 200) - 160);
      }
      writer.write(m);
      written.push_back(m);
    }
  }
  const Metrics read = read_metrics(path_);
  ASSERT_EQ(read.steps.size(), written.size());
  for (size_t i = 0; i < written.size(); ++i) {
    EXPECT_EQ(read.steps[i].loss, written[i].loss);
    EXPECT_EQ(read.steps[i].grad_norm, written[i].grad_norm);
    EXPECT_EQ(read.steps[i].lr, written[i].lr);
    EXPECT_EQ(read.steps[i].step_seconds, written[i].step_seconds);
    EXPECT_EQ(read.steps[i].communication_calls, 3);
  }
}

TEST_F(MetricsFile, UnknownNumbersAreNull) {
  StepMetrics m = some_step(1);
  m.mfu = std::numeric_limits<double>::quiet_NaN();
  m.grad_norm = std::numeric_limits<double>::infinity();
  MetricsWriter(path_).write(m);
  EXPECT_NE(content().find("\"mfu\": null"), std::string::npos);
  EXPECT_TRUE(std::isnan(read_metrics(path_).steps[0].mfu));
  EXPECT_TRUE(std::isnan(read_metrics(path_).steps[0].grad_norm));
}

TEST_F(MetricsFile, ASkippedStepIsMarked) {
  StepMetrics m = some_step(1);
  m.loss = std::numeric_limits<double>::quiet_NaN(), m.skipped = true;
  {
    MetricsWriter writer(path_);
    writer.write(m);
    writer.write(some_step(2));
  }
  EXPECT_NE(content().find("\"loss\": null"), std::string::npos);
  EXPECT_NE(content().find(", \"skipped\": true}\n"), std::string::npos);
  const Metrics read = read_metrics(path_);
  EXPECT_TRUE(read.steps.at(0).skipped);
  EXPECT_FALSE(read.steps.at(1).skipped);
  put("{\"step\": 1, \"skipped\": 1}\n");
  EXPECT_THROW(read_metrics(path_), DataError);
}

TEST_F(MetricsFile, EachLineIsInTheFileAtOnce) {
  MetricsWriter writer(path_);
  writer.write(some_step(1));
  EXPECT_EQ(content(), to_json_line(some_step(1)));
  writer.write(ValidationMetrics{1, 2, 3});
  EXPECT_EQ(content(), to_json_line(some_step(1)) + to_json_line(ValidationMetrics{1, 2, 3}));
}

TEST_F(MetricsFile, ResumeKeepsOneTrueHistory) {
  std::string whole;
  {
    MetricsWriter writer(path_);
    for (int64_t step = 1; step <= 10; ++step) {
      writer.write(some_step(step));
      if (step % 5 == 0) writer.write(ValidationMetrics{step, 2, 3});
    }
    whole = content();
  }
  put(whole + "{\"step\": 11, \"lo");  // killed while writing
  {
    MetricsWriter writer(path_, 7);
    EXPECT_EQ(read_metrics(path_).steps.size(), 7u);
    EXPECT_EQ(read_metrics(path_).validations.size(), 1u);
    for (int64_t step = 8; step <= 10; ++step) writer.write(some_step(step));
    writer.write(ValidationMetrics{10, 2, 3});
  }
  EXPECT_EQ(content(), whole);
}

TEST_F(MetricsFile, ResumeAtTheLastStepCutsOnlyTheTornLine) {
  const std::string two = to_json_line(some_step(1)) + to_json_line(some_step(2));
  put(two + to_json_line(some_step(3)).substr(0, 20));
  EXPECT_EQ(read_metrics(path_).steps.size(), 2u);
  EXPECT_EQ(MetricsWriter(path_, 2).missing_steps(), 0);
  MetricsWriter(path_, 2).write(some_step(3));
  EXPECT_EQ(content(), two + to_json_line(some_step(3)));
}

TEST_F(MetricsFile, ResumeCountsTheStepsThatATornLineLeavesOut) {
  put(to_json_line(some_step(1)) + to_json_line(some_step(2)).substr(0, 20));
  EXPECT_EQ(MetricsWriter(path_, 2).missing_steps(), 1);
  EXPECT_EQ(MetricsWriter(path_).missing_steps(), 0);
}

TEST_F(MetricsFile, FreshRunStartsEmptyAndResumeWithoutFileStartsOne) {
  MetricsWriter(path_, 100).write(some_step(101));
  EXPECT_EQ(read_metrics(path_).steps.at(0).step, 101);
  MetricsWriter(path_).write(some_step(1));
  EXPECT_EQ(read_metrics(path_).steps.at(0).step, 1);
}

TEST_F(MetricsFile, ResumeRefusesADamagedHistory) {
  put(to_json_line(some_step(1)) + "rubbish\n" + to_json_line(some_step(3)));
  EXPECT_EQ(message_of<DataError>([&] { MetricsWriter(path_, 3); }).find(path_ + ":2: "), 0u);
  EXPECT_EQ(read_metrics((put(to_json_line(some_step(1))), path_)).steps.size(), 1u);
}

TEST_F(MetricsFile, DamageIsNamedWithFileAndLine) {
  const std::string first = to_json_line(some_step(1));
  const auto after_first = [&](const std::string& line) {
    put(first + line + "\n");
    return message_of<DataError>([&] { read_metrics(path_); });
  };
  EXPECT_EQ(after_first("[1]"), path_ + ":2: expected one object");
  EXPECT_EQ(after_first(R"({"step": 2})"), path_ + ":2: no field \"loss\"");
  EXPECT_EQ(after_first(R"({"loss": 2})"), path_ + ":2: no field \"step\"");
  EXPECT_EQ(after_first(R"({"step": 2, "loss": "low"})"), path_ + ":2: \"loss\" is \"low\", not a number");
  EXPECT_EQ(after_first(R"({"step": 2.5, "loss": 1})"), path_ + ":2: \"step\" is 2.5, not an integer");
  EXPECT_EQ(after_first(first.substr(0, first.size() - 1)), path_ + ":2: step 1 comes after step 1");
  EXPECT_EQ(after_first("{\"step\": 2, \"lo").find(path_ + ":2: "), 0u);
  EXPECT_EQ(after_first(to_json_line(some_step(2)).substr(0, to_json_line(some_step(2)).size() - 1)), "");
  EXPECT_EQ(message_of<DataError>([] { read_metrics("/nowhere/metrics.jsonl"); }),
            "cannot read /nowhere/metrics.jsonl: No such file or directory");
}

TEST_F(MetricsFile, FullDiskIsAClearError) {
  MetricsWriter writer("/dev/full");
  EXPECT_EQ(
      message_of<DataError>([&] { writer.write(some_step(1)); }),
      "cannot write /dev/full: No space left on device; free some space there, or choose another job.dump_folder");
}

}  // namespace
}  // namespace orthant::metrics_test
