// Measures the CPU time of planning a step under every schedule, by default for 64 stages and 512 microbatches:
//
//   build/benchmarks/schedule_plan [stages [microbatches]]
//
// The first table is for the schedule alone: make its order, add messages, validate it, simulate it, and draw it. The
// second table is for the complete plan of a model with two layers per stage, as `orthant plan` makes it: the plan, and
// its text or JSON, which both contain every other schedule and the alternatives. Times are CPU times in milliseconds,
// medians of three.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <vector>

#include "advice/explain.h"
#include "advice/plan_json.h"
#include "parallel/pipeline/plan.h"
#include "plan/plan.h"
#include "schedule/draw.h"
#include "schedule/passes.h"
#include "schedule/simulate.h"
#include "schedule/validate.h"

namespace orthant {
namespace {

struct Size {
  int stages, microbatches;
};

/// Records the CPU time between successive calls, in milliseconds, in columns of a table.
class Laps {
 public:
  void begin() { last_ = std::clock(); }
  void end(size_t column) {
    if (column >= columns_.size()) columns_.resize(column + 1);
    columns_[column].push_back(1e3 * static_cast<double>(std::clock() - last_) / CLOCKS_PER_SEC);
    begin();
  }
  std::vector<double> medians() const {
    std::vector<double> out;
    for (std::vector<double> column : columns_) {
      std::sort(column.begin(), column.end());
      out.push_back(column[column.size() / 2]);
    }
    return out;
  }

 private:
  std::clock_t last_ = 0;
  std::vector<std::vector<double>> columns_;
};

void print(const std::string& name, const std::vector<double>& numbers) {
  fmt::print("{:<18}", name);
  for (const double number : numbers) fmt::print("{:>10.1f}", number);
  fmt::print("\n");
  std::fflush(stdout);
}

void time_schedule(const PipelineSchedule& each, const Size& size) {
  const Durations durations = Durations::of(1, 1.1, 0.9);
  size_t drawn = 0;
  Laps laps;
  for (int run = 0; run < 3; ++run) {
    laps.begin();
    const Schedule order =
        each.make({size.stages / each.stages_per_rank, each.stages_per_rank, size.microbatches, durations});
    laps.end(0);
    const Schedule schedule = add_messages(order);
    laps.end(1);
    validate(schedule, size.microbatches);
    laps.end(2);
    const Timeline timeline = simulate(schedule, durations);
    laps.end(3);
    drawn += draw_svg(schedule, timeline, "Planned").size();
    laps.end(4);
  }
  if (drawn > 0) print(std::string(each.name), laps.medians());
}

void time_plan(const PipelineSchedule& each, const Size& size) {
  const int ranks = size.stages / each.stages_per_rank;
  const std::vector<std::string> keys = {
      "model.hidden_size=1024", "model.intermediate_size=2816", "model.num_attention_heads=16",
      fmt::format("model.num_hidden_layers={}", 2 * size.stages), "training.local_batch_size=1",
      fmt::format("training.global_batch_size={}", size.microbatches), fmt::format("run.ranks={}", ranks),
      fmt::format("parallelism.pipeline_parallel_degree={}", ranks),
      fmt::format("parallelism.pipeline_parallel_schedule={}", each.name)};
  const Config config = parse_config("", "run.toml", keys);
  size_t written = 0;
  Laps laps;
  for (int run = 0; run < 3; ++run) {
    laps.begin();
    const Plan plan = make_plan(config, {.ranks = ranks, .vocab_size = 32000});
    laps.end(0);
    written += explain(plan, Sections::all()).size();
    laps.end(1);
    written += plan_json(plan, Sections::all()).size();
    laps.end(2);
  }
  if (written > 0) print(std::string(each.name), laps.medians());
}

}  // namespace
}  // namespace orthant

int main(int count, char** words) {
  using namespace orthant;
  const Size size{count > 1 ? std::atoi(words[1]) : 64, count > 2 ? std::atoi(words[2]) : 512};
  fmt::print("{} stages, {} microbatches\n{:<18}{:>10}{:>10}{:>10}{:>10}{:>10}\n", size.stages, size.microbatches,
             "schedule", "make", "messages", "validate", "time", "draw");
  for (const PipelineSchedule& each : pipeline_schedules()) time_schedule(each, size);
  fmt::print("\n{:<18}{:>10}{:>10}{:>10}\n", "orthant plan", "plan", "as text", "as JSON");
  for (const PipelineSchedule& each : pipeline_schedules()) time_plan(each, size);
}
