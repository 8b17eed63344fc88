// Plans and searches of the C interface.
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "advice/advised_plan.h"
#include "advice/answer.h"
#include "advice/explain.h"
#include "advice/layout_search.h"
#include "advice/plan_json.h"
#include "advice/run_warnings.h"
#include "base/errors.h"
#include "library/answer.h"
#include "library/run.h"

namespace orthant {
namespace {

using Words = std::vector<std::string>;

[[noreturn]] void refuse_form(const std::string& form) { throw LogicError("the answer has no form " + form); }

// Reads the run of a request. `more` are settings after those of the request.
RunToPlan run_of(const Request& request, const Words& more = {}) {
  Words settings = request.value("settings", Words());
  settings.insert(settings.end(), more.begin(), more.end());
  if (request.contains("hf")) return model_to_plan(request["hf"].get<std::string>(), settings);
  if (request.contains("path")) return run_to_plan(load_config(request["path"].get<std::string>(), settings));
  return run_to_plan(parse_config(request.at("text").get<std::string>(), "run", settings));
}

class PlanAnswer : public Answer {
 public:
  explicit PlanAnswer(Plan plan) : plan_(std::move(plan)) {}

  std::string text(const Request& request) const override {
    const auto form = request.at("form").get<std::string>();
    const Sections sections = Sections::named(request.value("show", Words()));
    if (form == "json") return plan_json(plan_, sections);
    if (form == "page") return explain(plan_, sections);
    if (form == "run_file") return print_config(plan_.given);
    if (form == "svg") return planned_svg(plan_);
    if (form == "warnings") return warnings();
    refuse_form(form);
  }

 private:
  std::string warnings() const {
    Request list = Request::array();
    for (const std::string& warning :
         {idle_ranks_warning(plan_), empty_ranks_warning(plan_), idle_settings_warning(plan_)}) {
      if (!warning.empty()) list.push_back(warning);
    }
    return list.dump();
  }

  const Plan plan_;
};

class SearchAnswer : public Answer {
 public:
  SearchAnswer(SearchResult result, RunFacts facts) : result_(std::move(result)), facts_(std::move(facts)) {}

  std::string text(const Request& request) const override {
    const auto form = request.at("form").get<std::string>();
    if (form == "json") return search_json(result_, facts_, Sections::named(request.value("show", Words())));
    if (form == "page") return page();
    if (form == "run_file") return print_config(result_.fitting.at(request.at("index").get<size_t>()).config);
    refuse_form(form);
  }

 private:
  std::string page() const {
    const std::string layouts = explain_search(result_, *facts_.hardware);
    if (result_.fitting.empty()) return layouts;
    return layouts + "\n" + explain_answer(make_plan(result_.fitting.front().config, facts_));
  }

  const SearchResult result_;
  const RunFacts facts_;
};

}  // namespace

std::unique_ptr<Answer> answer_plan(const Request& request) {
  const auto [config, facts] = run_of(request);
  return std::make_unique<PlanAnswer>(advised_plan(config, facts));
}

std::unique_ptr<Answer> answer_search(const Request& request) {
  const auto [config, facts] = run_of(request, {"parallelism.layout=auto"});
  if (!facts.hardware) {
    throw ConfigError("a search requires a machine: set run.hardware, to h100-8x or this-cpu for example");
  }
  SearchResult result = search_layouts(config, facts);
  if (result.planned == 0) advised_plan(config, facts);  // throws the law that excludes all layouts
  return std::make_unique<SearchAnswer>(std::move(result), facts);
}

}  // namespace orthant
