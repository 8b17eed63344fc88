// The table of pipeline schedules.
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

using Shape = PipelineShape;

Schedule make_interleaved(const Shape& s) {
  if (s.stages_per_rank == 1) return one_f_one_b(s.ranks, s.microbatches, s.extra_warmup_forwards);
  return interleaved_1f1b(s.ranks, s.stages_per_rank, s.microbatches, s.extra_warmup_forwards);
}

constexpr std::array<PipelineSchedule, 9> kSchedules = {{
    {"gpipe", "all forwards, then all backwards", 1, false, false,
     [](const Shape& s) { return gpipe(s.ranks, s.microbatches); }},
    {"1f1b", "a forward and a backward in turn", 1, false, false,
     [](const Shape& s) { return one_f_one_b(s.ranks, s.microbatches, s.extra_warmup_forwards); }},
    {"interleaved_1f1b", "several stages a rank, in 1F1B's order", 2, true, false, make_interleaved},
    {"zb_h1", "backward split; 1F1B's live passes", 1, false, false,
     [](const Shape& s) { return zb_h1(s.ranks, s.microbatches, s.extra_warmup_forwards); }},
    {"zb_h2", "backward split, more forwards ahead; twice 1F1B's live passes", 1, false, false,
     [](const Shape& s) { return zb_h2(s.ranks, s.microbatches, s.extra_warmup_forwards); }},
    {"zb_v", "two stages a rank, backward split; 1F1B's live passes", 2, false, false,
     [](const Shape& s) { return zb_v(s.ranks, s.microbatches, s.extra_warmup_forwards); }},
    {"v_half", "two stages a rank, half of 1F1B's live passes", 2, false, true,
     [](const Shape& s) { return v_half(s.ranks, s.microbatches, s.durations, s.extra_warmup_forwards); }},
    {"v_min", "two stages a rank, a third of 1F1B's live passes", 2, false, true,
     [](const Shape& s) { return v_min(s.ranks, s.microbatches, s.durations, s.extra_warmup_forwards); }},
    {"dual_pipe_v", "two stages a rank, forwards paired with backwards", 2, false, false,
     [](const Shape& s) { return dual_pipe_v(s.ranks, s.microbatches); }},
}};

}  // namespace

std::span<const PipelineSchedule> pipeline_schedules() { return kSchedules; }

const PipelineSchedule& pipeline_schedule(std::string_view name) {
  for (const PipelineSchedule& each : kSchedules)
    if (each.name == name) return each;
  throw LogicError(fmt::format("no pipeline schedule has the name {}", name));
}

}  // namespace orthant
