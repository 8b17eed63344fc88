// Pipeline schedules of the C interface.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/text.h"
#include "library/answer.h"
#include "parallel/pipeline/csv_plan.h"
#include "parallel/pipeline/plan.h"
#include "report/chart.h"
#include "schedule/draw.h"
#include "schedule/passes.h"
#include "schedule/validate.h"

namespace orthant {
namespace {

const PipelineSchedule& find_schedule(const std::string& name) {
  const auto all = pipeline_schedules();
  const auto found = std::ranges::find(all, name, &PipelineSchedule::name);
  if (found != all.end()) return *found;
  std::vector<std::string> names;
  for (const PipelineSchedule& schedule : all) names.emplace_back(schedule.name);
  const auto near = nearest(name, names);
  throw ConfigError(fmt::format(
      "name = \"{}\": no schedule has this name; {}", name,
      near ? fmt::format("did you mean {}?", *near) : fmt::format("the schedules are {}", join(names, ", "))));
}

// Reads a whole number of the request, which must be at least `least`.
int64_t number(const Request& request, const char* key, int64_t least) {
  const Request& value = request.at(key);
  const auto read = value.get<int64_t>();
  const bool is_large = value.is_number_unsigned() && value.get<uint64_t>() > INT32_MAX;
  if (!is_large && read >= least && read <= INT32_MAX) return read;
  throw ConfigError(fmt::format("{} = {} must be from {} to {}", key, value.dump(), least, INT32_MAX));
}

Durations durations_of(const Request& request) {
  const auto given = request.at("durations").get<std::vector<double>>();
  ORTHANT_CHECK(given.size() == 3, given.size());
  const bool is_legal = std::ranges::all_of(given, [](double time) { return std::isfinite(time) && time > 0; });
  if (is_legal) return Durations::of(given[0], given[1], given[2]);
  throw ConfigError(fmt::format("durations = ({}) must be finite and above 0", fmt::join(given, ", ")));
}

Schedule named_schedule(const Request& request, const Durations& durations) {
  const PipelineSchedule& known = find_schedule(request.at("name").get<std::string>());
  const int64_t ranks = number(request, "ranks", 1), microbatches = number(request, "microbatches", 1);
  const int64_t asked = number(request, "stages_per_rank", 0), stages = asked > 0 ? asked : known.stages_per_rank;
  if (stages != known.stages_per_rank && !known.any_stages) {
    throw ConfigError(fmt::format("stages_per_rank = {} must be 0 or {} with the schedule {}", asked,
                                  known.stages_per_rank, known.name));
  }
  if (stages > kMostStageMicrobatches / ranks || stages * ranks > kMostStageMicrobatches / microbatches) {
    throw ConfigError(fmt::format("stages x microbatches = {} x {} must be at most {}; use fewer microbatches",
                                  stages * ranks, microbatches, kMostStageMicrobatches));
  }
  return add_messages(known.make({.ranks = static_cast<int>(ranks),
                                  .stages_per_rank = static_cast<int>(stages),
                                  .microbatches = static_cast<int>(microbatches),
                                  .durations = durations}));
}

Schedule read_schedule(const std::string& csv) {
  const Schedule given = parse_csv(csv);
  return schedule_from_csv(csv, static_cast<int>(given.rows.size()), microbatch_count(given));
}

class ScheduleAnswer : public Answer {
 public:
  ScheduleAnswer(std::string name, Schedule schedule, const Durations& durations)
      : name_(std::move(name)), schedule_(std::move(schedule)), timeline_(simulate(schedule_, durations)) {
    timeline_.unit = "time units";
  }

  std::string text(const Request& request) const override {
    const auto form = request.at("form").get<std::string>();
    if (form == "json") return json();
    if (form == "pytorch_csv") return to_pytorch_csv(schedule_);
    if (form == "csv") return to_csv(schedule_);
    if (form == "grid") return grid(schedule_);
    if (form == "svg") return draw_svg(schedule_, timeline_, escape(name_));
    throw LogicError("a schedule has no form " + form);
  }

 private:
  std::string json() const {
    return Request({{"name", name_},
                    {"ranks", schedule_.rows.size()},
                    {"stages", schedule_.stage_owner.size()},
                    {"microbatches", microbatch_count(schedule_)},
                    {"stage_owner", schedule_.stage_owner},
                    {"makespan", timeline_.makespan},
                    {"bubble", timeline_.bubble},
                    {"busy", timeline_.busy},
                    {"peak_live_passes", timeline_.peak_in_flight}})
        .dump();
  }

  const std::string name_;
  const Schedule schedule_;
  Timeline timeline_;
};

}  // namespace

std::unique_ptr<Answer> answer_schedule(const Request& request) {
  const Durations durations = durations_of(request);
  const bool is_read = request.contains("csv");
  Schedule schedule = is_read ? read_schedule(request["csv"].get<std::string>()) : named_schedule(request, durations);
  const std::string name = is_read ? "schedule from CSV" : request["name"].get<std::string>();
  return std::make_unique<ScheduleAnswer>(name, std::move(schedule), durations);
}

}  // namespace orthant
