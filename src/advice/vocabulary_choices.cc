// Plans the run again with every placement of the vocabulary layers, and recommends one.
#include "advice/vocabulary_choices.h"

#include <fmt/format.h>

#include <algorithm>

#include "advice/answer.h"
#include "base/errors.h"
#include "base/text.h"
#include "base/text_table.h"
#include "config/from_config.h"
#include "config/table.h"
#include "plan/plan.h"

namespace orthant {
namespace {

constexpr const char* kKey = "parallelism.vocabulary_parallel";

void fill_costs(VocabularyChoice& choice, const Plan& plan) {
  choice.compute = plan.timeline.busy;
  choice.step = plan.step_length();
  set_costs(choice, plan);
  const int element = dtype_bytes(plan.config.training.dtype);
  choice.parameter_bytes.assign(choice.compute.size(), 0);
  for (int index = 0; index < plan.classes.count(); ++index) {
    const int rank = plan.classes.first_rank(index);
    int64_t elements = 0;
    for (size_t p = 0; p < plan.parameters.size(); ++p) {
      if (!plan.holds(rank, p)) continue;
      elements += volume(local_shape(plan.mesh, plan.layouts[p], plan.parameters[p].shape, rank));
    }
    int64_t& most = choice.parameter_bytes[static_cast<size_t>(plan.pipeline_rank(rank))];
    most = std::max(most, elements * element);
  }
}

// Returns the least and the greatest value, and their ratio.
template <class T, class Text>
std::string span_text(const std::vector<T>& values, Text text) {
  const auto [least, most] = std::minmax_element(values.begin(), values.end());
  const std::string both = text(*least) + " to " + text(*most);
  if (!(*least > 0)) return both;
  return fmt::format("{} ({:.2f})", both, static_cast<double>(*most) / static_cast<double>(*least));
}

}  // namespace

std::vector<VocabularyChoice> vocabulary_choices(const Plan& plan) {
  std::vector<VocabularyChoice> choices;
  if (plan.schedule.rows.size() == 1) return choices;
  const std::string& own = plan.config.parallelism.vocabulary_parallel;
  for (const std::string& name : find_key(kKey)->legal.choices) {
    VocabularyChoice& choice = choices.emplace_back();
    choice.name = name;
    choice.chosen = name == own;
    if (choice.chosen) {
      fill_costs(choice, plan);
      continue;
    }
    Config other = plan.config;
    other.parallelism.vocabulary_parallel = name;
    other.origins[kKey] = "compared";
    if (shards_vocabulary(other) && plan.post_validates()) {
      other.parallelism.pipeline_parallel_post_validation = false;
      choice.otherwise = "parallelism.pipeline_parallel_post_validation=false";
    }
    try {
      fill_costs(choice, make_plan(other, plan.facts));
    } catch (const ConfigError& error) {
      choice.refusal = error.what();
    }
  }
  return choices;
}

const VocabularyChoice* recommended(const std::vector<VocabularyChoice>& choices, const Plan& plan) {
  const auto is_candidate = [&](const VocabularyChoice& choice) {
    const bool is_timed = plan.step_time.has_value() || !choice.waits_at_barriers();
    return is_timed && choice.fits;
  };
  double shortest = 0;
  for (const VocabularyChoice& choice : choices) {
    if (is_candidate(choice) && (shortest == 0 || choice.step < shortest)) shortest = choice.step;
  }
  const VocabularyChoice* best = nullptr;
  for (const VocabularyChoice& choice : choices) {
    if (!is_candidate(choice) || choice.step > 1.01 * shortest) continue;
    if (best == nullptr || choice.memory_bytes < best->memory_bytes) best = &choice;
  }
  return best;
}

std::string explain_vocabulary_choices(const Plan& plan) {
  const std::vector<VocabularyChoice> choices = vocabulary_choices(plan);
  if (choices.empty()) return "";
  const VocabularyChoice* const best = recommended(choices, plan);
  std::vector<std::vector<std::string>> rows = {
      {"placement", "computation of a rank", "its weights", "step time", "its memory", ""}};
  for (const VocabularyChoice& choice : choices) {
    if (!choice.is_legal()) {
      rows.push_back({choice.name, "", "", "", "", "refused: " + choice.refusal});
      continue;
    }
    std::vector<std::string> remarks;
    if (choice.chosen) remarks.push_back("as planned");
    if (&choice == best) remarks.push_back("recommended");
    if (!choice.fits) remarks.push_back("does not fit");
    if (!choice.otherwise.empty()) remarks.push_back("with " + choice.otherwise);
    if (!plan.step_time && choice.waits_at_barriers()) {
      remarks.push_back("waits for messages in every microbatch, which only --hardware counts");
    }
    rows.push_back(
        {choice.name, span_text(choice.compute, [&](double time) { return timeline_text(plan, time); }),
         span_text(choice.parameter_bytes, [](int64_t bytes) { return format_bytes(static_cast<double>(bytes)); }),
         timeline_text(plan, choice.step), format_bytes(static_cast<double>(choice.memory_bytes)),
         join(remarks, "; ")});
  }
  const char* const timed = plan.step_time ? "Steps include the update." : "Times count FLOPs only.";
  return text_table(rows) +
         fmt::format("  Two numbers are the least and the most of any pipeline rank, with their ratio. {}\n"
                     "  Recommended is the shortest step that fits; of steps within 1 % of it, the least memory.\n",
                     timed);
}

}  // namespace orthant
