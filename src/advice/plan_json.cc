// Writes the fields one after the other.
#include "advice/plan_json.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "advice/alternatives.h"
#include "advice/answer.h"
#include "advice/fit.h"
#include "advice/layouts.h"
#include "advice/recomputation_choices.h"
#include "advice/schedule_choices.h"
#include "advice/tensor_choices.h"
#include "advice/vocabulary_choices.h"
#include "advice/zero_choices.h"
#include "config/from_config.h"
#include "plan/pipeline.h"
#include "schedule/bubbles.h"
#include "schedule/measured.h"

namespace orthant {
namespace {

using Json = nlohmann::ordered_json;

Json memory_json(const MemoryBytes& m) {
  return {{"total", m.total()},       {"parameters", m.parameters},   {"gradients", m.gradients},
          {"optimizer", m.optimizer}, {"activations", m.activations}, {"working", m.working},
          {"host", m.host},           {"host_copies", m.host_copies}};
}

// Returns a cost of a choice; null if the choice is refused.
template <class Number>
Json cost(const ComparedPlan& choice, Number number) {
  return choice.is_legal() ? Json(number) : Json();
}

// Returns the step time of a choice; null if the choice is refused, or if the hardware is not known.
Json step_seconds(const ComparedPlan& choice) {
  return choice.is_legal() && choice.step_seconds > 0 ? Json(choice.step_seconds) : Json();
}

// Adds one entry for each rank, in contrast to add_classes().
void add_ranks(Json& out, const Plan& plan) {
  out["per_rank"] = Json::array();
  const std::vector<int64_t> sent = plan.communication_bytes(), received = plan.received_bytes();
  for (int rank = 0; rank < plan.mesh.size(); ++rank) {
    const auto at = static_cast<size_t>(plan.classes.of(rank));
    out["per_rank"].push_back({{"rank", rank},
                               {"sequences", plan.data_shard(rank).sequences.size()},
                               {"communication_bytes", sent[at]},
                               {"received_bytes", received[at]},
                               {"memory_bytes", memory_json(plan.memory_of(rank))}});
  }
}

void add_classes(Json& out, const Plan& plan) {
  out["classes"] = Json::array();
  const std::vector<int64_t> sent = plan.communication_bytes(), received = plan.received_bytes();
  for (int index = 0; index < plan.classes.count(); ++index) {
    const int rank = plan.classes.first_rank(index);
    const MemoryBytes& m = plan.memory[static_cast<size_t>(index)];
    const DataShard& shard = plan.data_shard(rank);
    Json microbatches = Json::array();
    for (const auto& [sequences, count] : microbatch_sizes(shard)) {
      microbatches.push_back({{"sequences", sequences}, {"count", count}});
    }
    out["classes"].push_back({{"ranks", ranks_text(plan.classes.ranges(index))},
                              {"count", plan.classes.num_ranks(index)},
                              {"pipeline_rank", plan.pipeline_rank(rank)},
                              {"sequences", shard.sequences.size()},
                              {"microbatches", microbatches},
                              {"communication_bytes", sent[static_cast<size_t>(index)]},
                              {"received_bytes", received[static_cast<size_t>(index)]},
                              {"memory_bytes", memory_json(m)}});
  }
}

// Adds the step time and the fit on the given hardware; nothing if the hardware is not known.
void add_answer(Json& out, const Plan& plan) {
  if (!plan.step_time) return;
  const StepTime& step = *plan.step_time;
  const Fit fit = fit_of(plan);
  const MemoryBytes& worst = plan.memory_of(fit.rank);
  const std::vector<TableOrigin> tables = origins(*plan.facts.hardware);
  out["step_seconds"] = step.seconds;
  out["tokens_per_second"] = static_cast<double>(plan.tokens_per_step()) / step.seconds;
  out["mfu"] = model_flops_utilization(plan, step.seconds, true);
  out["mfu_causal"] = model_flops_utilization(plan, step.seconds, false);
  out["exposed_communication_seconds"] = step.exposed_communication();
  out["step_parts_seconds"] = step_parts_json(step);
  out["fits"] = fit.fits();
  out["worst_rank"] = {{"rank", fit.rank},
                       {"action", worst.peak ? to_string(*worst.peak) : "update"},
                       {"bytes", fit.tensor_bytes},
                       {"other_bytes", fit.other_bytes},
                       {"device_bytes", *fit.device_bytes},
                       {"limit_bytes", fit.limit_bytes ? Json(*fit.limit_bytes) : Json()}};
  out["hardware"] = {{"name", plan.facts.hardware->name},
                     {"measured", std::ranges::all_of(tables, &TableOrigin::measured)}};
}

// The mean duration of each computation that takes time, by stage.
Json passes_json(const Timeline& timeline) {
  Json passes = Json::array();
  const Durations means = mean_durations(timeline);
  for (size_t stage = 0; stage < means.stage_times.size(); ++stage) {
    for (const KindFacts& kind : action_kinds()) {
      const double mean = means.stage_times[stage][static_cast<size_t>(kind.kind)];
      if (kind.stream != Stream::compute || mean == 0) continue;
      passes.push_back({{"stage", stage}, {"pass", std::string(kind.text)}, {"mean", mean}});
    }
  }
  return passes;
}

void add_schedule(Json& out, const Plan& plan) {
  out["schedule"] = {{"name", plan.config.parallelism.pipeline_parallel_schedule},
                     {"csv", to_csv(plan.schedule)},
                     {"pytorch_csv", to_pytorch_csv(plan.schedule)},
                     {"microbatches", plan.data_shards[0].microbatches.size()},
                     {"stages", Json::array()}};
  const std::vector<StageFlops> flops = count_stage_flops(plan.config, plan.architecture, plan.stages);
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    const Stage& stage = plan.stages[s];
    out["schedule"]["stages"].push_back({{"pipeline_rank", stage.owner},
                                         {"first_layer", stage.layers.begin},
                                         {"layers", stage.layers.size()},
                                         {"embedding", stage.first && plan.vocabulary.empty()},
                                         {"head", stage.last && plan.vocabulary.empty()},
                                         {"forward_flops_per_token", flops[s].forward},
                                         {"input_flops_per_token", flops[s].input},
                                         {"weight_flops_per_token", flops[s].weights}});
  }
  out["timeline"] = {{"unit", plan.timeline.unit},
                     {"makespan", plan.timeline.makespan},
                     {"row_interval", plan.row_interval},
                     {"bubble", plan.timeline.bubble},
                     {"makespan_bubble", makespan_bubble(plan.timeline)},
                     {"own_bubble", max_rank_bubble(plan.timeline)},
                     {"passes", passes_json(plan.timeline)},
                     {"busy", plan.timeline.busy},
                     {"peak_live_passes", plan.timeline.peak_in_flight}};
}

void add_schedule_choices(Json& out, const Plan& plan) {
  out["schedule_choices"] = Json::array();
  for (const ScheduleChoice& choice : schedule_choices(plan)) {
    out["schedule_choices"].push_back({{"schedule", choice.name},
                                       {"bubble", cost(choice, choice.bubble)},
                                       {"step", cost(choice, choice.step)},
                                       {"memory_bytes", cost(choice, choice.memory_bytes)},
                                       {"sent_bytes", cost(choice, choice.sent_bytes)},
                                       {"otherwise", choice.otherwise},
                                       {"fits", cost(choice, choice.fits)},
                                       {"refusal", choice.refusal},
                                       {"chosen", choice.chosen}});
  }
  out["vocabulary_choices"] = Json::array();
  const auto placements = vocabulary_choices(plan);
  for (const VocabularyChoice& choice : placements) {
    out["vocabulary_choices"].push_back({{"vocabulary_parallel", choice.name},
                                         {"compute", cost(choice, choice.compute)},
                                         {"parameter_bytes", cost(choice, choice.parameter_bytes)},
                                         {"step", cost(choice, choice.step)},
                                         {"memory_bytes", cost(choice, choice.memory_bytes)},
                                         {"otherwise", choice.otherwise},
                                         {"fits", cost(choice, choice.fits)},
                                         {"refusal", choice.refusal},
                                         {"chosen", choice.chosen},
                                         {"recommended", &choice == recommended(placements, plan)}});
  }
}

void add_zero_choices(Json& out, const Plan& plan) {
  out["zero_choices"] = Json::array();
  for (const ZeroChoice& choice : zero_choices(plan)) {
    out["zero_choices"].push_back({{"zero_stage", choice.stage},
                                   {"zero_reshard", choice.reshard_name()},
                                   {"state_bytes", cost(choice, choice.state_bytes)},
                                   {"memory_bytes", cost(choice, choice.memory_bytes)},
                                   {"parameter_bytes_sent", cost(choice, choice.parameter_bytes_sent)},
                                   {"step_seconds", step_seconds(choice)},
                                   {"fits", cost(choice, choice.fits)},
                                   {"refusal", choice.refusal},
                                   {"chosen", choice.chosen}});
  }
}

void add_recomputation_choices(Json& out, const Plan& plan) {
  out["recomputation_choices"] = Json::array();
  const std::vector<RecomputationChoice> choices = recomputation_choices(plan);
  const RecomputationChoice* const best = recommended(choices, plan);
  for (const RecomputationChoice& choice : choices) {
    out["recomputation_choices"].push_back({{"mode", choice.setting.mode},
                                            {"operations", choice.setting.operations},
                                            {"layers", choice.setting.layers},
                                            {"memory_bytes", cost(choice, choice.memory_bytes)},
                                            {"extra_flops", cost(choice, choice.extra_flops)},
                                            {"extra_bytes_sent", cost(choice, choice.extra_bytes)},
                                            {"step_seconds", step_seconds(choice)},
                                            {"fits", cost(choice, choice.fits)},
                                            {"refusal", choice.refusal},
                                            {"chosen", choice.chosen},
                                            {"recommended", &choice == best}});
  }
}

Json alternative_json(const Alternative& other, const std::string& name) {
  return {{name, other.change},
          {"memory_bytes", cost(other, other.memory_bytes)},
          {"communication_bytes", cost(other, other.sent_bytes)},
          {"step_seconds", step_seconds(other)},
          {"remark", other.remark},
          {"fits", cost(other, other.fits)},
          {"refusal", other.refusal}};
}

void add_layouts(Json& out, const Plan& plan) {
  out["layouts"] = Json::array();
  for (const Alternative& layout : other_layouts(plan)) out["layouts"].push_back(alternative_json(layout, "layout"));
  const std::vector<TensorChoice> meshes = tensor_choices(plan);
  out["tensor_elements_bound"] = meshes.empty() ? Json() : Json(received_elements_bound(plan));
  out["tensor_choices"] = Json::array();
  const TensorChoice* const best = recommended(meshes);
  for (const TensorChoice& choice : meshes) {
    out["tensor_choices"].push_back({{"mesh", choice.name},
                                     {"rows", choice.tensor.rows},
                                     {"columns", choice.tensor.columns},
                                     {"depth", choice.tensor.depth},
                                     {"product", choice.tensor.form == ProductForm::summa ? "summa" : "stationary"},
                                     {"elements_forward", choice.received_elements.forward},
                                     {"elements_backward", choice.received_elements.backward},
                                     {"elements_depth", choice.received_elements.depth},
                                     {"sent_bytes", cost(choice, choice.sent_bytes)},
                                     {"step_seconds", step_seconds(choice)},
                                     {"memory_bytes", cost(choice, choice.memory_bytes)},
                                     {"fits", cost(choice, choice.fits)},
                                     {"refusal", choice.refusal},
                                     {"recommended", &choice == best},
                                     {"chosen", choice.chosen}});
  }
  out["alternatives"] = Json::array();
  for (const Alternative& other : alternatives_to(plan))
    out["alternatives"].push_back(alternative_json(other, "change"));
}

}  // namespace

Json step_parts_json(const StepTime& step) {
  return {{"products", step.passes.products},
          {"attention", step.passes.attention},
          {"kernels", step.passes.kernels},
          {"communication", step.passes.communication},
          {"idle", step.idle},
          {"sharing", step.sharing},
          {"reductions", step.reductions},
          {"update", step.update},
          {"gathers", step.gathers}};
}

std::string plan_json(const Plan& plan, const Sections& sections) {
  Json out;
  out["version"] = kPlanJsonVersion;
  add_answer(out, plan);
  out["mesh"] = Json::array();
  for (const Axis& axis : plan.mesh.axes) out["mesh"].push_back({{"axis", axis.name}, {"size", axis.size}});
  out["ranks"] = plan.mesh.size();
  out["parameters"] = {{"count", plan.num_parameters()}, {"tensors", Json::array()}};
  for (size_t i = 0; i < plan.parameters.size(); ++i) {
    const auto& p = plan.parameters[i];
    out["parameters"]["tensors"].push_back(
        {{"name", p.name}, {"shape", p.shape}, {"layout", to_string(plan.layouts[i])}});
  }
  out["attention"] = {{"objective", plan.architecture.causal() ? "causal" : "masked"},
                      {"sliding_window", plan.architecture.sliding_window},
                      {"linformer_length", plan.architecture.linformer_length},
                      {"attn_logit_softcapping", plan.architecture.attn_logit_softcapping},
                      {"mask_documents", plan.config.data.mask_documents}};
  const OutputLoss loss = make_output_loss(plan.config);
  out["loss"] = {
      {"final_logit_softcapping", loss.softcap}, {"label_smoothing", loss.smoothing}, {"z_loss", loss.z_weight}};
  add_classes(out, plan);
  out["communication"] = Json::array();
  for (const auto& entry : plan.communication) {
    out["communication"].push_back({{"what", entry.what},
                                    {"collective", entry.collective},
                                    {"axis", entry.axis},
                                    {"buckets", entry.buckets},
                                    {"calls_per_step", entry.calls},
                                    {"bytes_per_step", entry.bytes},
                                    {"received_bytes_per_step", entry.received}});
  }
  add_schedule(out, plan);
  if (sections.schedule) add_schedule_choices(out, plan);
  if (sections.memory) add_ranks(out, plan);
  if (sections.memory) add_zero_choices(out, plan);
  if (sections.memory) add_recomputation_choices(out, plan);
  if (sections.layouts) add_layouts(out, plan);
  return out.dump(2) + "\n";
}

}  // namespace orthant
