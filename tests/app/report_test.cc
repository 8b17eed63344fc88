// The HTML report of a run folder: its sections and figures, missing or damaged files, and independence of the network.
#include "app/report.h"

#include "report/chart.h"
#include "base/errors.h"
#include "report/metrics.h"
#include "schedule/measured.h"
#include "tests/report/html_balance.h"
#include "tests/support/says.h"
#include "tests/support/temp_folder.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <limits>

namespace orthant::report_test {
namespace {

constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

class ReportFolder : public testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(folder_ / "tb"); }

  void put(const std::string& name, const std::string& text) const { spill(folder_ / name, text); }
  void put_metrics(int64_t steps) const {
    MetricsWriter writer(folder_ / "metrics.jsonl");
    for (int64_t step = 1; step <= steps; ++step) {
      writer.write(StepMetrics{.step = step,
                               .loss = 2 + 3 / static_cast<double>(step),
                               .grad_norm = 1,
                               .lr = 1e-3,
                               .tokens = 1024 * step,
                               .step_seconds = 0.5,
                               .tokens_per_second = 2048,
                               .mfu = kUnknown,
                               .peak_memory_bytes = int64_t{300} << 20,
                               .communication_seconds = 0.1,
                               .communication_bytes = 1 << 20,
                               .received_bytes = 2 << 20,
                               .communication_calls = 7,
                               .data_seconds = 0.05});
      if (step % 10 == 0) writer.write(ValidationMetrics{step, 2.5 - 0.01 * static_cast<double>(step), 1.75});
    }
  }
  void put_everything() const {
    put_metrics(40);
    put("config.toml", "[job]\ndescription = \"Two <ranks>\"\n[model]\nnum_hidden_layers = 3\n");
    put("plan.json",
        R"({"version": 3, "mesh": [{"axis": "data", "size": 2}], "ranks": 2,)"
        R"("parameters": {"count": 1234567},)"
        R"("classes": [{"ranks": "0", "communication_bytes": 1048576, "received_bytes": 524288, "memory_bytes": {)"
        R"("total": 209715200, "parameters": 104857600, "gradients": 104857600}},)"
        R"({"ranks": "1", "communication_bytes": 2097152, "memory_bytes": {)"
        R"("total": 157286400, "parameters": 104857600, "gradients": 52428800}}]})");
    put("schedule.svg", "<svg xmlns=\"http://www.w3.org/2000/svg\"><text>\"1F\"</text></svg>");
    put("sample.txt", "Some </pre><script>alert(1)</script> text \xff\n");
    put("tb/events.out.tfevents.1700000000.host.1.0", "");
    put("tb/events.out.tfevents.1600000000.host.1.0", "");
  }
  std::string page() const { return slurp(write_report(folder_.path())); }
  std::string message() const {
    return message_of<DataError>([&] { write_report(folder_.path()); });
  }

  TempFolder folder_;
};

TEST_F(ReportFolder, WholeRunHasEverySection) {
  put_everything();
  EXPECT_EQ(write_report(folder_.path()), folder_ / "report.html");
  const std::string html = page();
  for (const char* id : {"loss", "sample", "rate", "norm", "throughput", "time", "communication", "calls", "memory",
                         "schedule", "validation", "config"}) {
    EXPECT_NE(html.find(fmt::format("<section class=\"card\" id=\"{}\">", id)), std::string::npos) << id;
  }
  for (const char* text : {"Two &lt;ranks&gt;",
                           "llama, 3 layers",
                           "1,234,567",
                           "data 2; 2 ranks",
                           "2020-09-13 12:26 UTC",
                           "<span class=\"value\">2.075</span>",
                           "5.000 at step 1",
                           "Expected <b>200.0 MiB</b>",
                           "Measured <b>300.0 MiB</b>",
                           ", +50.0%",
                           "20.0%, 4.0 s",
                           "70.0%, 14.0 s",
                           "10.0%, 2.0 s",
                           "median 2.05k",
                           "By rank 0; ",
                           "Planned: 1,048,576 bytes a step",
                           "Rank 0 receives 80.0 MiB in all",
                           "Planned: 524,288 bytes received a step",
                           "data:image/svg+xml,%3Csvg",
                           "Exposed communication",
                           "exposed comm"}) {
    EXPECT_NE(html.find(text), std::string::npos) << text;
  }
  EXPECT_EQ(html.find("class=\"missing\""), std::string::npos);
  EXPECT_EQ(unbalanced(html), "");
}

// The parts of the planned step, and the median of the measured ones. Without a hardware profile there is no plan.
TEST_F(ReportFolder, PlannedAndMeasuredTimesAreSideBySide) {
  put_everything();
  EXPECT_EQ(page().find("<h3>Planned"), std::string::npos);
  const std::string plan = slurp(folder_ / "plan.json");
  put("plan.json",
      R"({"step_seconds": 0.4, "exposed_communication_seconds": 0.12, "step_parts_seconds": {"products": 0.2,)"
      R"("attention": 0, "communication": {"ring": 0.02}, "idle": 0.08, "gathers": 0.1},)" +
          plan.substr(1));
  const std::string html = page();
  for (const char* text : {"<h3>Planned <b>400 ms a step</b>, of which 120 ms exposed communication</h3>",
                           "matrix products <b>50.0%, 200 ms</b>", "messages over ring <b>5.0%, 20 ms</b>",
                           "idle <b>20.0%, 80 ms</b>", "gathers after the update <b>25.0%, 100 ms</b>",
                           "Measured <b>500 ms a step</b> (median), +25.0% compared with the plan"}) {
    EXPECT_NE(html.find(text), std::string::npos) << text;
  }
  EXPECT_EQ(html.find("attention <b>0"), std::string::npos);
  EXPECT_EQ(unbalanced(html), "");
}

// A run was resumed with less memory per rank: both the plan and the measured peak are those after the resume.
TEST_F(ReportFolder, PeakIsOfThePlanThatIsExpected) {
  put_everything();
  {
    MetricsWriter writer(folder_ / "metrics.jsonl", 40);
    writer.write(StepMetrics{.step = 41, .loss = 2, .tokens = 1024 * 41, .peak_memory_bytes = int64_t{200} << 20});
  }
  const std::string html = page();
  EXPECT_NE(html.find("Measured <b>200.0 MiB</b>, +0.0%"), std::string::npos);
  EXPECT_EQ(html.find("300.0 MiB"), std::string::npos);
}

TEST_F(ReportFolder, PageNeedsNoNetworkAndRunsNothingOfTheFiles) {
  put_everything();
  const std::string html = page();
  for (const char* outside : {"src=\"http", "href=", "@import", "url(", "<link", "<script>alert", "fetch("}) {
    EXPECT_EQ(html.find(outside), std::string::npos) << outside;
  }
  EXPECT_NE(html.find("Some &lt;/pre&gt;&lt;script&gt;alert(1)&lt;/script&gt; text \ufffd"), std::string::npos);
  EXPECT_NE(html.find("prefers-color-scheme: dark"), std::string::npos);
}

TEST_F(ReportFolder, MissingPiecesAreSentences) {
  put_metrics(3);
  const std::string html = page();
  for (const char* text :
       {"no plan.json", "no schedule.svg", "No validation was run", "no sample.txt", "no config.toml"}) {
    EXPECT_NE(html.find(text), std::string::npos) << text;
  }
  EXPECT_EQ(unbalanced(html), "");
  EXPECT_EQ(html.find("nan"), std::string::npos);
}

TEST_F(ReportFolder, OneStepAndNoStep) {
  put_metrics(1);
  EXPECT_EQ(unbalanced(page()), "");
  EXPECT_EQ(page().find("nan"), std::string::npos);
  put_metrics(0);
  EXPECT_NE(page().find("the run ended before its first one"), std::string::npos);
  EXPECT_EQ(unbalanced(page()), "");
}

TEST_F(ReportFolder, AMeasuredStepStandsUnderThePlan) {
  put_everything();
  EXPECT_EQ(page().find("Measured: step"), std::string::npos);
  put("config.toml", "[parallelism]\npipeline_parallel_degree = -1\npipeline_parallel_schedule = \"a/<mine>.csv\"\n");
  const auto put_plan = [&](int ranks) {
    put("plan.json", fmt::format(R"({{"version": 3, "mesh": [{{"axis": "pipeline", "size": {0}}}], "ranks": {0},)"
                                 R"("parameters": {{"count": 1}}, "classes": []}})",
                                 ranks));
  };
  put_plan(1);
  EXPECT_EQ(page().find("<dt>Schedule</dt>"), std::string::npos);
  put_plan(2);
  using enum ActionKind;
  MeasuredStep measured{.step = 40,
                        .clock_error_s = 25e-6,
                        .simulated_s = 0.08,
                        .schedule = {.rows = {{{F, 0, 0}, {SEND_F, 0, 0}, {RECV_B, 0, 0}, {B, 0, 0}},
                                              {{RECV_F, 1, 0}, {F, 1, 0}, {B, 1, 0}, {SEND_B, 1, 0}}},
                                     .stage_owner = {0, 1}},
                        .timeline = {}};
  measured.timeline = measured_timeline(measured.schedule, {{{0, 0.01}, {0.01, 0.011}, {0.011, 0.012}, {0.08, 0.1}},
                                                            {{0, 0.001}, {0.02, 0.03}, {0.03, 0.05}, {0.05, 0.051}}});
  put("timeline.json", to_json(measured));
  const std::string html = page();
  for (const char* text :
       {"<dt>Schedule</dt><dd>&lt;mine&gt;.csv</dd>", "step 40 took <b>100.0 ms</b>", "bubble <b>70.0%</b>",
        "agree to 0.025 ms", "<b>80.0 ms</b>",
        "measured / simulated <b>1.250</b>", "<tr><td>1</td><td>1</td><td>10.000</td><td>20.000</td>",
        "The planned schedule", "The measured schedule", "Measured, step 40: 2 pipeline ranks", "0F0: 0 ms to 10 ms"}) {
    EXPECT_NE(html.find(text), std::string::npos) << text;
  }
  EXPECT_EQ(html.find("SEND_F"), std::string::npos) << "when a message was started is in the file, not in the picture";
  EXPECT_EQ(unbalanced(html), "");
  put("timeline.json", to_json(measured).substr(0, 300));
  EXPECT_NE(page().find("Not shown: " + escape(folder_ / "timeline.json")), std::string::npos);
}

// Ranks without a pipeline run no schedule that could be drawn.
TEST_F(ReportFolder, OnlyPipelinesHaveASchedule) {
  put_everything();
  const std::string plan = slurp(folder_ / "plan.json"), axis = R"({"axis": "data", "size": 2})",
                    card = "id=\"schedule\"";
  const auto page_of = [&](int ranks) {
    const std::string more = fmt::format(R"({}, {{"axis": "pipeline", "size": {}}})", axis, ranks);
    put("plan.json", std::string(plan).replace(plan.find(axis), axis.size(), more));
    return page();
  };
  EXPECT_NE(page_of(2).find(card), std::string::npos);
  EXPECT_EQ(page_of(1).find(card), std::string::npos);
  EXPECT_EQ(unbalanced(page_of(1)), "");
}

// Narrow screens have their own drawing, because a wide chart shrunk to 400 pixels cannot be read.
TEST_F(ReportFolder, EveryChartHasAFormForNarrowScreens) {
  put_everything();
  const std::string html = page();
  EXPECT_NE(html.find("@media (max-width: 560px) { .broad { display: none; } .narrow { display: block; }"),
            std::string::npos);
  for (const char* id : {"loss", "rate", "norm", "throughput", "time", "communication", "calls"}) {
    const size_t begin = html.find(fmt::format("<section class=\"card\" id=\"{}\">", id));
    const std::string section = html.substr(begin, html.find("</section>", begin) - begin);
    const size_t narrow = section.find("<div class=\"narrow\">");
    ASSERT_NE(narrow, std::string::npos) << id;
    const size_t box = section.find("viewBox=\"0 0 ", narrow);
    ASSERT_NE(box, std::string::npos) << id;
    EXPECT_LE(std::stod(section.substr(box + 13)), 400) << id;
    EXPECT_EQ(section.find("text-anchor=\"start\">validation", narrow), std::string::npos) << "names stand below";
  }
  const size_t loss = html.find("<div class=\"narrow\">");
  EXPECT_NE(html.find("<i class=\"back-orange\"></i>validation 2.100</li>", loss), std::string::npos);
  EXPECT_EQ(unbalanced(html), "");
}

TEST_F(ReportFolder, LongRunStaysSmall) {
  put_metrics(20000);
  const std::string html = page();
  EXPECT_LT(html.size(), 400u * 1024) << "lines are thinned";
  EXPECT_NE(html.find("20,000 steps"), std::string::npos);
}

TEST_F(ReportFolder, DamagedOptionalFilesAreNamed) {
  put_everything();
  put("plan.json", "{\"mesh\": ");
  put("config.toml", "[model]\nnum_hidden_layer = 3\n");
  const std::string html = page();
  EXPECT_NE(html.find("Not shown: " + escape(folder_ / "plan.json")), std::string::npos);
  EXPECT_NE(html.find("num_hidden_layer"), std::string::npos);
  put("plan.json", R"({"version": 3, "mesh": [{"axis": 3}], "classes": [1, 2]})");
  EXPECT_NE(page().find("Not shown: "), std::string::npos);
  put("plan.json", R"({"version": 1, "mesh": [], "per_rank": []})");
  EXPECT_NE(page().find("must be 3, but is 1"), std::string::npos);
}

TEST_F(ReportFolder, WithoutMetricsItSaysWhatAndWhere) {
  EXPECT_EQ(message(),
            folder_.path() + " is not a run folder: it has no metrics.jsonl; give the job.dump_folder of a run");
  put("metrics.jsonl", to_json_line(ValidationMetrics{1, 2, 3}) + "{\"step\": 2}\n");
  EXPECT_EQ(message(), (folder_ / "metrics.jsonl") + ":2: no field \"loss\"");
}

TEST_F(ReportFolder, UnwritablePageIsNamed) {
  put_metrics(1);
  std::filesystem::create_directories(folder_ / "report.html");
  EXPECT_EQ(message(), "cannot write " + (folder_ / "report.html") + ": Is a directory");
}

}  // namespace
}  // namespace orthant::report_test
