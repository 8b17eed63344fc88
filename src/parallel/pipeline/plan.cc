#include "parallel/pipeline/plan.h"

#include <array>

#include "base/errors.h"
#include "parallel/pipeline/dual_pipe_v_plan.h"
#include "parallel/pipeline/gpipe_plan.h"
#include "parallel/pipeline/interleaved_plan.h"
#include "parallel/pipeline/one_f_one_b_plan.h"
#include "parallel/pipeline/v_schedules_plan.h"
#include "parallel/pipeline/zero_bubble_plan.h"

namespace orthant {
namespace {

template <Schedule (*generate)(int, int)>
Schedule by_counts(int ranks, int, int microbatches, const Durations&, int) {
  return generate(ranks, microbatches);
}
template <Schedule (*generate)(int, int, int)>
Schedule by_counts(int ranks, int, int microbatches, const Durations&, int later) {
  return generate(ranks, microbatches, later);
}
template <Schedule (*generate)(int, int, const Durations&, int)>
Schedule by_durations(int ranks, int, int microbatches, const Durations& durations, int later) {
  return generate(ranks, microbatches, durations, later);
}
Schedule by_chunks(int ranks, int stages_per_rank, int microbatches, const Durations&, int later) {
  return interleaved_1f1b(ranks, stages_per_rank, microbatches, later);
}

constexpr std::array<PipelineSchedule, 9> kSchedules = {{
    {"gpipe", "all forwards, then all backwards", 1, false, by_counts<gpipe>},
    {"1f1b", "a forward and a backward in turn", 1, false, by_counts<one_f_one_b>},
    {"interleaved_1f1b", "several stages a rank, in 1F1B's order", 2, true, by_chunks},
    {"zb_h1", "backward split; 1F1B's memory", 1, false, by_counts<zb_h1>},
    {"zb_h2", "backward split, more forwards ahead; twice 1F1B's memory", 1, false, by_counts<zb_h2>},
    {"zb_v", "two stages a rank, backward split; 1F1B's memory", 2, false, by_counts<zb_v>},
    {"v_half", "two stages a rank, half of 1F1B's memory", 2, false, by_durations<v_half>},
    {"v_min", "two stages a rank, a third of 1F1B's memory", 2, false, by_durations<v_min>},
    {"dual_pipe_v", "two stages a rank, forwards paired with backwards", 2, false, by_counts<dual_pipe_v>},
}};

}  // namespace

std::span<const PipelineSchedule> pipeline_schedules() { return kSchedules; }

const PipelineSchedule& pipeline_schedule(std::string_view name) {
  for (const PipelineSchedule& each : kSchedules)
    if (each.name == name) return each;
  throw LogicError(fmt::format("no pipeline schedule has the name {}", name));
}

}  // namespace orthant
