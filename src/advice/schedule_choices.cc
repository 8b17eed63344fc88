// Plans the run again with every named schedule, and writes the pipeline and the comparison as text.
#include "advice/schedule_choices.h"

#include <fmt/format.h>

#include <algorithm>

#include "advice/answer.h"
#include "base/errors.h"
#include "base/terminal_text.h"
#include "base/text.h"
#include "base/text_table.h"
#include "parallel/pipeline/plan.h"
#include "plan/pass_time.h"
#include "plan/pipeline.h"
#include "plan/plan.h"
#include "plan/vocabulary.h"
#include "schedule/bubbles.h"

namespace orthant {
namespace {

void fill_costs(ScheduleChoice& choice, const Plan& plan) {
  choice.bubble = plan.bubble();
  choice.step = plan.step_length();
  set_costs(choice, plan);
}

// Returns the description of a named schedule; empty for a schedule file.
std::string describe_schedule(const std::string& name) {
  for (const PipelineSchedule& known : pipeline_schedules())
    if (known.name == name) return std::string(known.meaning);
  return "";
}

std::string layers_text(const Stage& stage, bool with_vocabulary) {
  const auto [begin, end] = stage.layers;
  std::vector<std::string> parts;
  if (stage.first && with_vocabulary) parts.push_back("embedding");
  if (end - begin == 1) parts.push_back(fmt::format("layer {}", begin));
  if (end - begin > 1) parts.push_back(fmt::format("layers {}-{}", begin, end - 1));
  if (stage.last) parts.push_back(with_vocabulary ? "head" : "last norm");
  return parts.empty() ? "nothing" : join(parts, ", ");
}

// Leaves out the middle of all lines if they are too long for a terminal.
std::string cut(const std::string& text) {
  constexpr size_t kFirst = 72, kLast = 40;
  std::vector<std::string> lines = split(text, '\n');
  size_t longest = 0;
  for (const std::string& line : lines) longest = std::max(longest, line.size());
  if (longest <= kFirst + kLast) return text;
  std::string out;
  for (std::string& line : lines) {
    if (line.empty()) continue;
    line.resize(longest, ' ');
    line = line.substr(0, kFirst) + " ... " + line.substr(longest - kLast);
    out += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return out;
}

std::string explain_stages(const Plan& plan) {
  const std::vector<StageFlops> flops = count_stage_flops(plan.config, plan.architecture, plan.stages);
  const Durations durations =
      plan.step_time ? pass_seconds(plan, plan.stages) : estimate_durations(plan, plan.stages);
  const auto times = [&](double time) { return timeline_text(plan, time); };
  std::vector<std::vector<std::string>> rows = {{"stage", "pipeline rank", "holds", "F", "B", "of the FLOPs"}};
  const bool cut = !plan.vocabulary.empty();
  const double head = cut ? 3 * LayerFlops(plan.architecture, plan.config.training.seq_len).head : 0;
  double all = head;
  for (const StageFlops& stage : flops) all += stage.sum();
  const auto share = [&](double part) { return fmt::format("{:.1f} %", 100 * part / all); };
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    const auto of = [&](ActionKind kind) { return durations.stage_times[s][static_cast<size_t>(kind)]; };
    rows.push_back({fmt::format("{}", s), fmt::format("{}", plan.stages[s].owner), layers_text(plan.stages[s], !cut),
                    times(of(ActionKind::F)), times(of(ActionKind::B)), share(flops[s].sum())});
  }
  if (cut) {
    const auto& pass = durations.stage_times[0];
    const bool early = sums_input_gradient_early(plan);
    const auto of = [&](ActionKind kind) { return times(pass[static_cast<size_t>(kind)]); };
    rows.push_back({"", "each", fmt::format("1/{} of embedding and head", plan.schedule.rows.size()),
                    of(ActionKind::S) + " (S)", early ? of(ActionKind::TW) + " (TW)" : of(ActionKind::T) + " (T)",
                    fmt::format("{} x {}", plan.schedule.rows.size(), share(head / plan.mesh.axis_size(kPipeline)))});
  }
  return text_table(rows);
}

// Returns a table with one row per pipeline rank. Memory is the largest among the ranks with its stages.
std::string explain_ranks(const Plan& plan) {
  std::vector<std::vector<std::string>> rows = {{"pipeline rank", "computes", "most live", "memory of a rank"}};
  for (size_t at = 0; at < plan.schedule.rows.size(); ++at) {
    int64_t memory = 0;
    for (int index = 0; index < plan.classes.count(); ++index) {
      if (plan.pipeline_rank(plan.classes.first_rank(index)) == static_cast<int>(at))
        memory = std::max(memory, plan.memory[static_cast<size_t>(index)].total());
    }
    rows.push_back({fmt::format("{}", at), timeline_text(plan, plan.timeline.busy[at]),
                    fmt::format("{}", plan.timeline.peak_in_flight[at]), format_bytes(static_cast<double>(memory))});
  }
  return text_table(rows);
}

}  // namespace

std::vector<ScheduleChoice> schedule_choices(const Plan& plan) {
  std::vector<ScheduleChoice> choices;
  const auto& own = plan.config.parallelism;
  if (plan.schedule.rows.size() == 1) return choices;
  if (describe_schedule(own.pipeline_parallel_schedule).empty()) {
    ScheduleChoice& choice = choices.emplace_back();
    choice.name = own.pipeline_parallel_schedule, choice.chosen = true;
    fill_costs(choice, plan);
  }
  for (const PipelineSchedule& known : pipeline_schedules()) {
    ScheduleChoice& choice = choices.emplace_back();
    choice.name = known.name;
    choice.chosen = known.name == own.pipeline_parallel_schedule;
    if (choice.chosen) {
      fill_costs(choice, plan);
      continue;
    }
    Config other = plan.config;
    auto& p = other.parallelism;
    p.pipeline_parallel_schedule = known.name;
    other.origins["parallelism.pipeline_parallel_schedule"] = "compared";
    std::vector<std::string> otherwise;
    const int64_t asked = p.pipeline_parallel_stages_per_rank;
    const int64_t stages = known.any_stages && asked > 0 ? asked : known.stages_per_rank;
    if (asked > 0 && asked != stages) otherwise.push_back("parallelism.pipeline_parallel_stages_per_rank=0");
    if (asked != stages) p.pipeline_parallel_stages_per_rank = 0;
    const auto& layers = p.pipeline_parallel_layers;
    const bool by_hand = !layers.empty() && layers != std::vector<int64_t>{-1};
    if (by_hand && stages * static_cast<int64_t>(plan.schedule.rows.size()) != static_cast<int64_t>(layers.size())) {
      otherwise.push_back("parallelism.pipeline_parallel_layers=");
      p.pipeline_parallel_layers = {};
    }
    choice.otherwise = join(otherwise, " ");
    try {
      fill_costs(choice, make_plan(other, plan.facts));
    } catch (const ConfigError& error) {
      choice.refusal = error.what();
    }
  }
  return choices;
}

std::string explain_pipeline(const Plan& plan) {
  const Timeline& timeline = plan.timeline;
  std::string out = cut(grid(plan.schedule));
  const auto times = [&](double time) { return timeline_text(plan, time); };
  out += fmt::format("  {}: bubble {:.1f} % of the row, which takes {}; the busiest rank computes for {}\n",
                     plan.step_time ? "with " + escape_line(plan.facts.hardware->name) : "with durations from FLOPs",
                     100 * timeline.bubble, times(timeline.makespan),
                     times(timeline.makespan - makespan_bubble(timeline)));
  out += fmt::format("  {}a rank idles for at most {} between its first and last pass\n",
                     plan.step_time ? "" : "(unit: a rank's mean forward of a microbatch); ",
                     times(max_rank_bubble(timeline)));
  if (plan.post_validates()) {
    out += fmt::format("  steps overlap (post-validation): one begins every {}, with a bubble of {:.1f} %\n",
                       times(plan.row_interval), 100 * plan.bubble());
  }
  return out + "\nstages and the costs of their passes\n" + explain_stages(plan) +
         "\npipeline ranks; most live: microbatches between F and B or W\n" + explain_ranks(plan);
}

std::string explain_schedule_choices(const Plan& plan) {
  const std::vector<ScheduleChoice> choices = schedule_choices(plan);
  if (choices.empty()) return "";
  std::vector<std::vector<std::string>> rows = {{"schedule", "bubble", "step time", "memory", "sent by a rank", ""}};
  for (const ScheduleChoice& choice : choices) {
    const bool is_legal = choice.is_legal();
    std::vector<std::string> remarks;
    if (choice.chosen) remarks.push_back("as planned");
    if (!is_legal) remarks.push_back("refused: " + choice.refusal);
    if (is_legal && !choice.fits) remarks.push_back("does not fit");
    if (is_legal) remarks.push_back(describe_schedule(choice.name));
    if (is_legal && !choice.otherwise.empty()) remarks.push_back("with " + choice.otherwise);
    std::erase(remarks, "");
    rows.push_back({choice.name, is_legal ? fmt::format("{:.1f} %", 100 * choice.bubble) : "",
                    is_legal ? timeline_text(plan, choice.step) : "",
                    is_legal ? format_bytes(static_cast<double>(choice.memory_bytes)) : "",
                    is_legal ? format_bytes(static_cast<double>(choice.sent_bytes)) : "", join(remarks, "; ")});
  }
  return text_table(rows);
}

}  // namespace orthant
