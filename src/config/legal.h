// Short names for the laws of the table of keys, and the laws of texts with a form of their own.
#pragma once

#include <charconv>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "config/table.h"
#include "parallel/pipeline/plan.h"

namespace orthant {

inline Legal any() { return {}; }
inline Legal path() { return {.is_path = true}; }
inline Legal at_least(double least) { return {.least = least}; }
inline Legal above(double least) { return {.least = least, .above_least = true}; }
inline Legal between(double least, double most) { return {.least = least, .most = most}; }
inline Legal above_to(double least, double most) { return {.least = least, .most = most, .above_least = true}; }
inline Legal from_to_below(double least, double most) { return {.least = least, .most = most, .below_most = true}; }
inline Legal fraction_or_paths() { return {.least = 0, .most = 1, .below_most = true, .is_path = true}; }
inline Legal degree_or_rest() { return {.least = 1, .or_minus_one = true}; }
inline Legal one_of(std::vector<std::string> choices) { return {.choices = std::move(choices)}; }
// One of the choices, or a text that `accepts` accepts, such as the name of a file.
inline Legal one_of_or(std::vector<std::string> choices, bool (*accepts)(std::string_view),
                       std::vector<std::string> texts) {
  return {.choices = std::move(choices), .is_path = true, .accepts = accepts, .accepts_texts = std::move(texts)};
}

inline bool is_tokenizer(std::string_view text) {
  for (const std::string_view ending : {".model", ".json"}) {
    if (text.ends_with(ending)) return text.size() > ending.size();
  }
  if (!text.starts_with("train:")) return false;
  int size = 0;
  const auto [end, error] = std::from_chars(text.data() + 6, text.data() + text.size(), size);
  return error == std::errc() && end == text.data() + text.size() && size >= 1;
}

inline bool is_csv(std::string_view text) { return text.ends_with(".csv") && text.size() > 4; }

inline std::vector<std::string> schedule_names() {
  std::vector<std::string> names;
  for (const PipelineSchedule& schedule : pipeline_schedules()) names.emplace_back(schedule.name);
  return names;
}

}  // namespace orthant
