// How long it takes to plan a step of 64 stages and 512 microbatches (or as many as asked for) under every schedule:
//   build/benchmarks/schedule_plan [stages [microbatches]]
// Each line is the median of five, in milliseconds: the order and its messages made, judged, timed; and the picture
// drawn.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <numeric>
#include <utility>

#include "parallel/pipeline/messages_plan.h"
#include "parallel/pipeline/plan.h"
#include "schedule/draw.h"
#include "schedule/simulate.h"
#include "schedule/validate.h"

int main(int count, char** words) {
  using namespace orthant;
  const int stages = count > 1 ? std::atoi(words[1]) : 64, microbatches = count > 2 ? std::atoi(words[2]) : 512;
  const Durations durations = Durations::of(1, 1.1, 0.9);
  fmt::print("{} stages, {} microbatches\n{:<18}{:>8}{:>10}{:>8}{:>10}{:>10}{:>8}{:>8}{:>9}\n", stages, microbatches,
             "schedule", "ranks", "actions", "make", "messages", "validate", "time", "total", "draw");
  for (const PipelineSchedule& each : pipeline_schedules()) {
    const int ranks = stages / each.stages_per_rank;
    std::array<std::array<double, 6>, 5> runs{};
    size_t actions = 0;
    for (auto& ms : runs) {
      auto last = std::chrono::steady_clock::now();
      const auto lap = [&] {
        const auto now = std::chrono::steady_clock::now();
        return std::chrono::duration<double, std::milli>(now - std::exchange(last, now)).count();
      };
      const Schedule order = each.make(ranks, each.stages_per_rank, microbatches, durations);
      ms[0] = lap();
      const Schedule schedule = add_messages(order);
      ms[1] = lap();
      validate(schedule, microbatches);
      ms[2] = lap();
      const Timeline timeline = simulate(schedule, durations);
      ms[3] = lap();
      ms[4] = std::accumulate(ms.begin(), ms.begin() + 4, 0.0);
      actions = timeline.spans.size() + (draw_svg(schedule, timeline).empty() ? 1 : 0);
      ms[5] = lap();
    }
    fmt::print("{:<18}{:>8}{:>10}", each.name, ranks, actions);
    for (size_t column = 0; column < 6; ++column) {
      std::array<double, 5> times{};
      for (size_t run = 0; run < runs.size(); ++run) times[run] = runs[run][column];
      std::sort(times.begin(), times.end());
      fmt::print("{:>{}.1f}", times[2], std::array{8, 10, 10, 8, 8, 9}[column]);
    }
    fmt::print("\n");
  }
}
