// The comparison of runs: differences at equal steps, names, and the page with its sentences and tables. Negative
// controls: one bit of one loss, a missing value and a shifted step are detected.
#include "report/compare.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>

#include "config/changes.h"
#include "report/chart.h"
#include "report/differences.h"
#include "tests/report/html_balance.h"
#include "tests/support/says.h"

namespace orthant::report_compare_test {
namespace {

constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

ReportData run(const std::string& folder, int64_t steps, double lr = 1e-3) {
  ReportData data{.folder = folder};
  for (int64_t step = 1; step <= steps; ++step) {
    data.metrics.steps.push_back({.step = step,
                                  .loss = 2 + 1 / static_cast<double>(step),
                                  .grad_norm = 0.5,
                                  .lr = lr,
                                  .tokens = 1000 * step,
                                  .step_seconds = 0.25,
                                  .tokens_per_second = 4000,
                                  .mfu = kUnknown,
                                  .peak_memory_bytes = int64_t{64} << 20});
  }
  data.metrics.validations.push_back({.step = steps, .validation_loss = 2.25, .bits_per_byte = kUnknown});
  data.config.emplace();
  data.config->optimizer.lr = lr;
  return data;
}

std::string page_of(const std::vector<ReportData>& runs) { return compare_page(runs); }

TEST(Differences, EqualBitsAndOneBit) {
  const std::vector<Point> a = {{1, 2.5}, {2, kUnknown}, {3, 0.1}};
  EXPECT_TRUE(difference_of(a, a).is_equal());
  EXPECT_EQ(text_of(difference_of(a, a)), "equal in every bit");
  std::vector<Point> b = a;
  b[2].y = std::nextafter(0.1, 1);
  const Difference bit = difference_of(a, b);
  EXPECT_FALSE(bit.is_equal());
  EXPECT_EQ(bit.unequal_steps, 1);
  EXPECT_EQ(bit.first_step, 3);
  EXPECT_EQ(bit.largest, b[2].y - 0.1);
  EXPECT_EQ(text_of(bit), "1.4e-17 at step 3; relative 1.4e-16, unequal from step 3");
  b = a;
  b[1].y = 1;  // known in one run only
  EXPECT_EQ(text_of(difference_of(a, b)), "unequal from step 2");
}

TEST(Differences, OnlyEqualStepsCount) {
  const std::vector<Point> a = {{1, 1}, {2, 2}, {4, 4}}, b = {{2, 2}, {3, 9}, {4, 5}, {5, 9}};
  const Difference difference = difference_of(a, b);
  EXPECT_EQ(difference.common_steps, 2);
  EXPECT_EQ(difference.largest, 1);
  EXPECT_EQ(difference.relative, 0.25);
  EXPECT_EQ(difference.largest_step, 4);
  const std::vector<Point> odd = {{1, 1}, {3, 3}}, even = {{2, 1}, {4, 3}};
  EXPECT_EQ(text_of(difference_of(odd, even)), "-");
  EXPECT_FALSE(difference_of(odd, even).is_equal());
}

TEST(DifferingKeys, EqualKeysAreLeftOut) {
  Config one, two;
  EXPECT_TRUE(differing_keys(std::vector<std::optional<Config>>{one, two}).empty());
  two.training.steps = 7;
  two.parallelism.zero_stage = 2;
  const auto keys = differing_keys(std::vector<std::optional<Config>>{one, std::nullopt, two});
  ASSERT_EQ(keys.size(), 2u);
  EXPECT_EQ(keys[0].key, "training.steps");
  EXPECT_EQ(keys[0].values, (std::vector<std::string>{"300", "", "7"}));
  EXPECT_EQ(keys[1].key, "parallelism.zero_stage");
}

TEST(ComparePage, EqualRuns) {
  const std::string html = page_of({run("runs/one", 5), run("runs/two/", 5)});
  EXPECT_TRUE(says(html, {"<h1>2 runs</h1>", "The losses of all 2 runs are equal in every bit at 5 common steps.",
                          "All other keys are equal.", "equal in every bit</div>", ">one</dt>", ">two</dt>",
                          "<td><div>4.00k</div></td>", "2.250000 (step 5)", "64.0 MiB"}));
  for (const char* id : {"loss", "loss-tokens", "validation", "norm", "rate", "throughput", "memory", "time",
                         "differences", "figures", "keys"}) {
    EXPECT_NE(html.find(fmt::format("<section class=\"card\" id=\"{}\">", id)), std::string::npos) << id;
  }
  EXPECT_EQ(unbalanced(html), "");
  EXPECT_EQ(html.find("nan"), std::string::npos);
  for (const char* outside : {"src=\"http", "href=", "@import", "url(", "<link", "fetch("}) {
    EXPECT_EQ(html.find(outside), std::string::npos) << outside;
  }
}

TEST(ComparePage, NamesTheLargestDifferenceAndTheKeys) {
  auto runs = std::vector{run("a/first", 5), run("a/<second>", 5), run("a/third", 4, 3e-4)};
  runs[1].metrics.steps[3].loss += 0.5;
  runs[2].metrics.steps[1].loss += 0.25;
  const std::string html = page_of(runs);
  EXPECT_TRUE(says(html, {"from those of first at equal steps is 0.5 (relative 0.22): &lt;second&gt; at step 4.",
                          "0.25 at step 2<br>", "<code>optimizer.lr</code>", "<code>0.0003</code>"}));
  EXPECT_EQ(html.find("<second>"), std::string::npos);
  EXPECT_EQ(html.find("job.dump_folder</code>"), std::string::npos);
  EXPECT_EQ(html.find("training.steps"), std::string::npos);
  EXPECT_EQ(unbalanced(html), "");
}

TEST(ComparePage, RunsWithoutACommonStepOrAnyStep) {
  auto late = run("late", 4);
  for (auto& step : late.metrics.steps) step.step += 100;
  EXPECT_TRUE(says(page_of({run("one", 3), late}),
                   {"No other run has a step in common with one, so the losses cannot be compared", "no common step"}));
  EXPECT_TRUE(says(page_of({run("one", 3), late, run("two", 3)}),
                   {"The losses of 2 of 3 runs are equal in every bit at equal steps"}));
  const std::string empty = page_of({run("one", 3), ReportData{.folder = "none"}});
  EXPECT_TRUE(says(empty, {"no common step", "Fewer than two of the runs have a config.toml"}));
  EXPECT_EQ(unbalanced(empty), "");
  EXPECT_EQ(empty.find("nan"), std::string::npos);
  EXPECT_EQ(unbalanced(page_of({ReportData{.folder = "a"}, ReportData{.folder = "b"}})), "");
}

TEST(ComparePage, LossThatOneRunLacks) {
  auto runs = std::vector{run("one", 5), run("two", 5)};
  runs[1].metrics.steps[2].loss = kUnknown;
  const std::string html = page_of(runs);
  EXPECT_TRUE(says(html, {"At some common steps, only one of two runs has a loss", "unequal from step 3"}));
  EXPECT_EQ(html.find("nan"), std::string::npos);
}

TEST(ComparePage, EqualNamesBecomePaths) {
  const std::vector<ReportData> runs = {run("a/run/", 1), run("./b/run", 1)};
  EXPECT_EQ(run_names(runs), (std::vector<std::string>{"a/run", "b/run"}));
  EXPECT_EQ(run_names(std::vector{run("a/x", 1), run("b/y/.", 1)}), (std::vector<std::string>{"x", "y"}));
}

// Every run has a look of its own: 5 colors times 3 patterns.
TEST(ComparePage, LinesOfAllRunsLookDifferent) {
  std::vector<ReportData> runs;
  for (size_t i = 0; i < kMostRuns; ++i) runs.push_back(run(fmt::format("runs/{}", i), 3));
  const std::string html = page_of(runs);
  std::set<std::string> looks;
  const size_t end = html.find("</dl>");
  for (size_t at = 0; (at = html.find("<path class=\"", at)) < end; ++at) {
    looks.insert(html.substr(at + 13, html.find('"', at + 13) - at - 13));
  }
  EXPECT_EQ(looks.size(), kMostRuns);
}

}  // namespace
}  // namespace orthant::report_compare_test
