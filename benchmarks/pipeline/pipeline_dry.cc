// Measures the bubbles of pipeline schedules with sleeps in place of computations. The interpreter, its messages and
// the waits for them are the real ones, and there may be more ranks than cores. Prints the time for which a rank idles
// between its first and its last computation (own bubble), compared with the published formula.
//
//   pipeline_dry --ranks 4 --microbatches 16 --pass-ms 20 --schedules all --repeats 3 --message-bytes 65536
//
// A pass is the F, I or W of one stage; B is two passes. Bubbles are given in passes. Results are medians of the
// repeats. "simulated" is the step time for the requested sleeps, with messages that take no time.
#include <ATen/ops/empty.h>

#include "benchmarks/nap.h"
#include "benchmarks/ranks.h"
#include "parallel/pipeline/plan.h"
#include "runtime/step_timeline.h"
#include "schedule/bubbles.h"
#include "schedule/passes.h"
#include "schedule/send_completions.h"

namespace orthant {
namespace {

/// Returns the published own bubble in passes, for p pipeline ranks. It is valid if the number of microbatches is a
/// multiple of p and at least 2 p.
int published_bubble(std::string_view schedule, int p) {
  const int half = 2 * (p / 2 + 1), third = 2 * ((p + 4) / 3);  // activations saved by V-Half and V-Min, in stages
  if (schedule == "gpipe" || schedule == "1f1b" || schedule == "interleaved_1f1b") return 3 * (p - 1);
  if (schedule == "zb_h1" || schedule == "dual_pipe_v") return p - 1;
  if (schedule == "zb_h2" || schedule == "zb_v") return 0;
  if (schedule == "v_half") return 6 * p - 3 * half - 1;
  if (schedule == "v_min") return 6 * p - 3 * third - 1 + (p % 3 == 2 ? 4 : 0);
  throw ConfigError(fmt::format("--schedules {}: this schedule has no formula", schedule));
}

/// Carries out the schedule once. Rank 0 returns the measured step of all ranks.
MeasuredStep carry_out(Comm& comm, const Schedule& schedule, double pass_s, int64_t bytes, const Nap& nap) {
  const int last = stage_count(schedule) - 1;
  const auto message = [&](bool any) { return any ? at::empty({bytes}, at::kByte) : at::Tensor(); };
  Executor executor({.owners = schedule.stage_owner,
                     .send_completions = send_completions(schedule),
                     .stream_shape = [&](int) { return std::vector<int64_t>{bytes}; },
                     .stream = at::kByte},
                    {.forward =
                         [&](const Action& action, const at::Tensor&) {
                           nap(pass_s);
                           return message(action.stage < last);
                         },
                     .backward =
                         [&](const Action& action, const at::Tensor&) {
                           nap(action.kind == ActionKind::B ? 2 * pass_s : pass_s);
                           return message(action.stage > 0);
                         },
                     .weight_gradients = [&](const Action&) { nap(pass_s); }},
                    comm);
  comm.barrier(all_axes(comm.mesh())).wait();
  executor.run(schedule.rows[static_cast<size_t>(comm.rank())], {});
  return gather_timeline(comm, schedule, 1, executor.intervals());
}

void measure(const Settings& settings, Comm& comm) {
  const int ranks = comm.mesh().size(), microbatches = static_cast<int>(settings.integers("microbatches")[0]);
  const double pass_s = settings.number("pass-ms") / 1000;
  const int64_t bytes = settings.integers("message-bytes")[0];
  if (microbatches < 2 * ranks || microbatches % ranks != 0) {
    throw ConfigError(fmt::format("--microbatches {}: the formulas require a multiple of {} that is at least {}",
                                  microbatches,
                                  ranks, 2 * ranks));
  }
  const Nap nap;
  if (comm.rank() == 0) {
    fmt::print("| schedule | ranks | microbatches | own bubble, passes | formula | difference | of the step | step, s "
               "| simulated | measured / simulated |\n|---|---|---|---|---|---|---|---|---|---|\n");
  }
  for (const PipelineSchedule& each : pipeline_schedules()) {
    const std::string wanted = "," + settings.text("schedules") + ",";
    if (wanted != ",all," && wanted.find(fmt::format(",{},", each.name)) == std::string::npos) continue;
    const Schedule schedule =
        add_messages(each.make({ranks, each.stages_per_rank, microbatches}));
    const double simulated_s = simulate(schedule, Durations::of(pass_s, pass_s, pass_s)).makespan;
    std::vector<double> bubbles_s, steps_s;
    carry_out(comm, schedule, 0, bytes, nap);  // warms up
    for (int i = 0; i < settings.number("repeats"); ++i) {
      const MeasuredStep step = carry_out(comm, schedule, pass_s, bytes, nap);
      bubbles_s.push_back(max_rank_bubble(step.timeline));
      steps_s.push_back(step.timeline.makespan);
    }
    if (comm.rank() != 0) continue;
    const int formula = published_bubble(each.name, ranks);
    const double passes = quantile(bubbles_s, 0.5) / pass_s, step_s = quantile(steps_s, 0.5);
    fmt::print("| {} | {} | {} | {:.2f} | {} | {:+.2f} | {:+.1f} % | {:.3f} | {:.3f} | {:.3f} |\n", each.name, ranks,
               microbatches, passes, formula, passes - formula, 100 * (passes - formula) * pass_s / step_s, step_s,
               simulated_s, step_s / simulated_s);
    std::fflush(stdout);
  }
}

int run(int argc, char** argv) {
  const Settings settings(argc, argv, {{"ranks", "4"}, {"transport", "auto"}, {"microbatches", "16"}, {"pass-ms", "20"},
                                       {"schedules", "all"}, {"repeats", "3"}, {"message-bytes", "65536"}});
  return measure_on_ranks(argc, argv, static_cast<int>(settings.number("ranks")), settings.text("transport"),
                          [&](Comm& comm) { measure(settings, comm); },
                          [](const Launch& launch) { return Mesh({{"pipeline", launch.world_size}}); });
}

}  // namespace
}  // namespace orthant

int main(int argc, char** argv) { return orthant::run_benchmark(argc, argv, orthant::run); }
