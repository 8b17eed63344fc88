// The progress lines, the banner and the summary of a run: their text, widths and colors, and the choice of the style.
#include "report/progress.h"

#include "base/text.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <random>

namespace orthant::progress_test {
namespace {

constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
constexpr TerminalStyle kPlain = {}, kColored = {.color = true, .unicode = true},
                        kBoxes = {.color = false, .unicode = true};

StepMetrics example() {
  return {.step = 120,
          .loss = 2.4637,
          .grad_norm = 0.82,
          .lr = 6.1e-4,
          .tokens = 98304,
          .step_seconds = 0.098,
          .tokens_per_second = 7812,
          .mfu = kUnknown,
          .peak_memory_bytes = int64_t{412} << 20,
          .communication_seconds = 0.004,
          .communication_bytes = 0,
          .communication_calls = 0,
          .data_seconds = 0};
}

// The text without escape sequences.
std::string bare(const std::string& text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\x1b') {
      i = text.find('m', i);
    } else {
      out += text[i];
    }
  }
  return out;
}

TEST(Progress, StepLine) {
  EXPECT_EQ(step_line(example(), 1000, 88, kPlain),
            "step   120/1000  loss 2.4637  gnorm 0.82  lr 6.1e-4  7.8k tok/s   98ms  "
            "exposed comm  4%  mem 412M  eta 1m28");
  StepMetrics first = example();
  first.step = 1, first.loss = 10.95124, first.grad_norm = 12.345, first.lr = 0, first.step_seconds = 1.26;
  first.peak_memory_bytes = int64_t{3} << 30, first.tokens_per_second = 123456;
  EXPECT_EQ(step_line(first, 1000, kUnknown, kPlain),
            "step     1/1000  loss 10.951  gnorm 12.3  lr      0  123k tok/s   1.3s  "
            "exposed comm  0%  mem 3.0G  eta    -");
  EXPECT_EQ(validation_line({120, 2.5511, 1.8421}, 1000, kPlain), "valid  120/1000  loss 2.5511  bits/byte 1.842");
  EXPECT_EQ(validation_line({120, 2.5511, std::nan("")}, 1000, kPlain), "valid  120/1000  loss 2.5511");
  EXPECT_EQ(validation_line({120, 2.5511, std::nan(""), {{"code", 1.25, 1}, {"wiki", 3.5, 2}}}, 1000, kPlain),
            "valid  120/1000  loss 2.5511  code 1.2500  wiki 3.5000");
}

TEST(Progress, StepLineFitsTheTerminal) {
  const auto line = [](int columns) { return step_line(example(), 1000, 88, {.columns = columns}); };
  EXPECT_EQ(line(120), step_line(example(), 1000, 88, kPlain));
  EXPECT_EQ(line(80), "step   120/1000  loss 2.4637  gnorm 0.82  lr 6.1e-4  7.8k tok/s   98ms  eta 1m28");
  EXPECT_EQ(line(98), "step   120/1000  loss 2.4637  gnorm 0.82  lr 6.1e-4  7.8k tok/s   98ms  "
            "exposed comm  4%  eta 1m28");
  EXPECT_EQ(line(20), "step   120/1000  loss 2.4637  7.8k tok/s  eta 1m28");  // never less than this
  for (const int64_t total : {5, 300, 9999, 10000, 100000000}) {
    for (int columns = 60; columns <= 130; ++columns) {
      const std::string narrow = step_line(example(), total, 88, {.columns = columns});
      ASSERT_LE(narrow.size(), static_cast<size_t>(columns)) << narrow;
      ASSERT_EQ(bare(step_line(example(), total, 88, {.color = true, .columns = columns})), narrow);
    }
  }
}

TEST(Progress, BoxesFitTheTerminal) {
  const Summary s = {.steps = 12,
                     .seconds = 3,
                     .stopped = "by SIGTERM, after step 12 of 300",
                     .first_loss = 5.5,
                     .last_loss = 4.5,
                     .communication_share = 0.042,
                     .peak_memory_bytes = int64_t{390} << 20,
                     .memory_expected_bytes = int64_t{400} << 20,
                     .checkpoint = "runs/a/checkpoints/step-000012"};
  const Banner b = {
      .model = "llama, 6 layers, hidden 256, 8 heads (4 key-value), vocabulary 8000",
      .warnings = {"the plan needs 12.0 MiB, but of the 30.0 MiB of this machine only 5.0 MiB are available", "",
                   "4 ranks share 2 cores"}};
  for (const int columns : {60, 80, 120}) {
    for (const std::string& text : {summary(s, {.columns = columns}), banner(b, {.columns = columns})}) {
      for (const auto& line : split(text, '\n')) EXPECT_LE(line.size(), static_cast<size_t>(columns)) << line;
    }
  }
  EXPECT_NE(summary(s, kPlain).find("|  stopped     by SIGTERM, after step 12 of 300 "), std::string::npos);
  EXPECT_NE(banner(b, kPlain).find("|  warning     the plan needs 12.0 MiB"), std::string::npos);
  EXPECT_NE(banner(b, kPlain).find("|  warning     4 ranks share 2 cores"), std::string::npos);
  EXPECT_EQ(banner(b, kPlain).find("|  warning      "), std::string::npos);
  EXPECT_EQ(summary({.steps = 1}, kPlain).find("stopped"), std::string::npos);
}

TEST(Progress, ASummaryComparesTheStepWithThePlan) {
  Summary s = {.steps = 12, .tokens_per_second_median = 2048, .step_seconds_median = 0.5};
  EXPECT_NE(summary(s, kPlain).find(" tokens/s, 500 ms a step (medians) "), std::string::npos) << summary(s, kPlain);
  s.step_seconds_planned = 0.4;
  EXPECT_NE(summary(s, kPlain).find("; planned 400 ms (+25%)"), std::string::npos) << summary(s, kPlain);
}

TEST(Progress, LongRunsLeaveTheTotalOut) {
  StepMetrics m = example();
  m.step = 18543;
  EXPECT_EQ(step_line(m, 18865, 88, kPlain).substr(0, 27), "step  18543  loss 2.4637  g");
}

TEST(Progress, UnknownNumbersAreDashes) {
  const StepMetrics m = {.step = 3,
                         .loss = kUnknown,
                         .grad_norm = std::numeric_limits<double>::infinity(),
                         .lr = 1e-3,
                         .tokens = 0,
                         .step_seconds = kUnknown,
                         .tokens_per_second = kUnknown,
                         .mfu = kUnknown,
                         .peak_memory_bytes = 0,
                         .communication_seconds = kUnknown,
                         .communication_bytes = 0,
                         .communication_calls = 0,
                         .data_seconds = kUnknown};
  EXPECT_EQ(step_line(m, 20, 9, kPlain),
            "step     3/20  no labels    gnorm  inf  lr 1.0e-3     - tok/s      -  "
            "exposed comm   -  mem    -  eta   9s");
}

TEST(Progress, ASkippedStepHasALineOfItsOwn) {
  StepMetrics m = example();
  m.step = 120, m.loss = -std::numeric_limits<double>::quiet_NaN();
  m.grad_norm = std::numeric_limits<double>::infinity();
  EXPECT_EQ(skipped_line(m, 1000, 2, 10, kPlain),
            "skip   120/1000  loss    nan  gnorm    inf  update left out; 2 of at most 10 in a row");
  EXPECT_EQ(bare(skipped_line(m, 1000, 2, 10, kColored)), skipped_line(m, 1000, 2, 10, kPlain));
}

TEST(Progress, ColumnsStayFixedAndFewEnough) {
  std::mt19937_64 random(11);
  const auto any = [&](int low, int high) {
    const double exponent = low + static_cast<double>(random() % 10000) / 10000 * (high - low);
    return std::pow(10.0, exponent);
  };
  for (const int64_t total : {5, 300, 9999, 10000, 1000000, 100000000}) {
    const std::string usual = step_line(example(), total, 88, kPlain);
    EXPECT_LE(usual.size(), 108u);
    for (int i = 0; i < 3000; ++i) {
      StepMetrics m = example();
      m.step = 1 + static_cast<int64_t>(random() % static_cast<uint64_t>(total));
      m.loss = any(-5, 5), m.grad_norm = any(-9, 9), m.lr = any(-12, 0), m.step_seconds = any(-3, 4);
      m.tokens_per_second = any(0, 12), m.peak_memory_bytes = static_cast<int64_t>(any(6, 12));
      m.communication_seconds = m.step_seconds * static_cast<double>(random() % 99) / 100;
      const std::string line = step_line(m, total, any(0, 8), kPlain);
      ASSERT_EQ(line.size(), usual.size()) << line;
      for (const char* label : {"loss ", "gnorm ", "lr ", "tok/s", "exposed comm ", "mem ", "eta "}) {
        ASSERT_EQ(line.find(label), usual.find(label)) << line;
      }
      ASSERT_EQ(bare(step_line(m, total, 5, kColored)), step_line(m, total, 5, kPlain));
    }
  }
}

TEST(Progress, ColorSurroundsValuesAndNothingElse) {
  const std::string line = step_line(example(), 1000, 88, kColored);
  EXPECT_NE(line.find("\x1b[32m2.4637\x1b[0m"), std::string::npos);
  EXPECT_EQ(step_line(example(), 1000, 88, kPlain).find('\x1b'), std::string::npos);
}

TEST(Progress, StyleFollowsTheEnvironment) {
  const auto style = [](bool tty, const std::map<std::string, std::string>& environment) {
    return choose_style(tty, [&](const char* name) {
      const auto it = environment.find(name);
      return it == environment.end() ? nullptr : it->second.c_str();
    });
  };
  EXPECT_TRUE(style(true, {{"TERM", "xterm"}}).color);
  EXPECT_FALSE(style(false, {{"TERM", "xterm"}}).color);
  EXPECT_FALSE(style(true, {{"TERM", "dumb"}}).color);
  EXPECT_FALSE(style(true, {{"NO_COLOR", "1"}}).color);
  EXPECT_TRUE(style(true, {{"NO_COLOR", ""}}).color);
  EXPECT_TRUE(style(false, {{"CLICOLOR_FORCE", "1"}}).color);
  EXPECT_FALSE(style(false, {{"CLICOLOR_FORCE", "0"}}).color);
  EXPECT_TRUE(style(true, {{"LANG", "en_US.UTF-8"}}).unicode);
  EXPECT_TRUE(style(true, {{"LANG", "C"}, {"LC_ALL", "C.utf8"}}).unicode);
  EXPECT_FALSE(style(true, {{"LANG", "en_US.UTF-8"}, {"LC_ALL", "C"}}).unicode);
  EXPECT_FALSE(style(true, {}).unicode);
}

TEST(Progress, Durations) {
  const std::vector<std::pair<double, const char*>> cases = {
      {0, "0s"},      {59.4, "59s"},    {59.6, "1m00"},        {88, "1m28"},          {725, "12m"},    {7500, "2h05"},
      {36000, "10h"}, {172800, "2d00"}, {86400 * 3.3, "3d07"}, {86400.0 * 12, "12d"}, {kUnknown, "-"}, {-1, "-"}};
  for (const auto& [seconds, text] : cases) EXPECT_EQ(short_duration(seconds), text) << seconds;
}

TEST(Progress, MedianAndEta) {
  EXPECT_EQ(median(std::vector<double>{3, 1, 2}), 2);
  EXPECT_EQ(median(std::vector<double>{4, 1, 2, 3}), 2.5);
  EXPECT_TRUE(std::isnan(median({})));
  std::vector<double> times(50, 2.0);
  times.insert(times.begin(), 40, 100.0);  // a slow start is forgotten after 50 steps
  EXPECT_EQ(eta_seconds(times, 10), 20);
  EXPECT_TRUE(std::isnan(eta_seconds({}, 10)));
}

TEST(Progress, BannerAsciiAndUnicode) {
  const Banner b = {.version = "0.1.0",
                    .model = "llama, 2 layers",
                    .parameters = 1234567,
                    .data = "",
                    .tokens = 2457600,
                    .epochs = 1.5,
                    .steps = 300,
                    .batch = "",
                    .ranks = 2,
                    .mesh = "data 2",
                    .device = "cpu, float32",
                    .transport = "gloo",
                    .threads_per_rank = 1,
                    .memory_expected_bytes = int64_t{412} << 20,
                    .output_folder = "runs/é",
                    .resumed_from = ""};
  EXPECT_EQ(banner(b, kPlain),
            "+- orthant 0.1.0 ----------------------------------------------------+\n"
            "|  model       llama, 2 layers                                       |\n"
            "|  parameters  1,234,567                                             |\n"
            "|  this run    300 steps, 2.46M tokens, 1.50 epochs                  |\n"
            "|  mesh        data 2, 2 ranks                                       |\n"
            "|  device      cpu, float32, 1 thread a rank, gloo transport         |\n"
            "|  memory      412.0 MiB expected on the largest rank                |\n"
            "|  output      runs/é                                                |\n"
            "+--------------------------------------------------------------------+\n");
  const auto lines = split(banner(b, kBoxes), '\n');
  EXPECT_EQ(lines[1], "│  model       llama, 2 layers                                       │");
  EXPECT_EQ(bare(banner(b, kColored)), banner(b, kBoxes));
}

TEST(Progress, BannerWrapsLongValuesAndKeepsItsEdge) {
  Banner b = {.model = "llama"};
  for (int i = 0; i < 40; ++i) b.data += fmt::format("file{}.txt{}", i, i < 39 ? ", " : "");
  const std::string text = banner(b, kPlain);
  const auto lines = split(text, '\n');
  ASSERT_GE(lines.size(), 6u);
  for (size_t i = 0; i + 1 < lines.size(); ++i) {
    EXPECT_EQ(lines[i].size(), lines[0].size());
    EXPECT_LE(lines[i].size(), 100u);
  }
}

TEST(Progress, SummaryShowsTheCommandsAlone) {
  const Summary s = {.steps = 300,
                     .seconds = 131,
                     .first_loss = 5.5512,
                     .last_loss = 1.9321,
                     .best_validation_loss = 1.98,
                     .best_validation_step = 250,
                     .best_bits_per_byte = 1.842,
                     .tokens_per_second_median = 18800,
                     .step_seconds_median = 0.436,
                     .communication_share = 0.042,
                     .peak_memory_bytes = int64_t{390} << 20,
                     .memory_expected_bytes = int64_t{400} << 20,
                     .checkpoint = "runs/a/checkpoints/step-000300",
                     .report = "runs/a/report.html",
                     .resume_command = "orthant train a.toml --resume",
                     .sample_command = "orthant generate runs/a",
                     .sample_text = "one\n\x1b[31mtwo\n"};
  EXPECT_EQ(summary(s, kPlain),
            "+- 300 steps in 2m 11s ---------------------------------------------------------+\n"
            "|  loss        first 5.5512, last 1.9321                                        |\n"
            "|  validation  best 1.9800, after step 250; 1.842 bits/byte                     |\n"
            "|  speed       18.8k tokens/s, 436 ms a step (medians)                          |\n"
            "|  comm        exposed in 4.2% of rank 0's step time                            |\n"
            "|  memory      390.0 MiB at peak on the largest rank; expected 400.0 MiB (-2%)  |\n"
            "|  checkpoint  runs/a/checkpoints/step-000300                                   |\n"
            "|  report      runs/a/report.html                                               |\n"
            "+-------------------------------------------------------------------------------+\n"
            "\nTo resume:\n  orthant train a.toml --resume\n"
            "\nTo sample:\n  orthant generate runs/a\n"
            "\nSample: held-out text and the output of the model\n  one\n  [31mtwo\n");
  EXPECT_EQ(summary({.steps = 0}, kPlain).find("+- all steps were done already"), 0u);
}

TEST(Progress, PrintableTextIsValidAndHarmless) {
  EXPECT_EQ(visible_text("a\tb\nc \u20ac \U0001f600"), "a\tb\nc \u20ac \U0001f600");
  EXPECT_EQ(visible_text("\x1b[2J\r\x7f\a"), "[2J");
  EXPECT_EQ(visible_text("\xff\xc0\xaf"), "\ufffd\ufffd\ufffd");
  EXPECT_EQ(visible_text("\xe2\x82"), "\ufffd\ufffd");            // truncated
  EXPECT_EQ(visible_text("\xed\xa0\x80"), "\ufffd\ufffd\ufffd");  // a surrogate
  EXPECT_EQ(visible_text("x\xc2\x9by"), "xy");                    // a control sequence in one character
}

}  // namespace
}  // namespace orthant::progress_test
