// orthant plan: prints the layout, schedule, memory and communication of a run before it starts.
#include "advice/advised_plan.h"
#include "advice/answer.h"
#include "advice/explain.h"
#include "advice/layout_search.h"
#include "advice/plan_json.h"
#include "app/command_line.h"
#include "app/commands.h"
#include "app/run_setup.h"
#include "app/streams.h"
#include "base/errors.h"
#include "hardware/hardware.h"
#include "plan/plan.h"
#include "runtime/run_warnings.h"

#include <cstdio>

namespace orthant {
namespace {

int search(const PlanArguments& arguments, const Config& config, const RunFacts& facts) {
  if (!facts.hardware) {
    throw UsageError("--search requires --hardware NAME, such as h100-8x or this-cpu\nhelp:  orthant plan --help");
  }
  const SearchResult result = search_layouts(config, facts);
  std::string text = arguments.json ? search_json(result, facts) : explain_search(result, *facts.hardware);
  if (result.fitting.empty()) {
    std::fputs(text.c_str(), stdout);
    return result.planned > 0 ? kDone : kFailed;
  }
  const Config& best = result.fitting.front().config;
  if (!arguments.json) text += "\n" + explain_answer(make_plan(best, facts));
  std::fputs(text.c_str(), stdout);
  if (!arguments.write.empty()) {
    write_file("--write", arguments.write, print_config(best));
    if (!arguments.json) fmt::print("the best layout is in {}\n", arguments.write);
  }
  return kDone;
}

}  // namespace

int plan(const PlanArguments& arguments) {
  if (!arguments.run_file.empty() && !arguments.hf.empty()) {
    throw UsageError(fmt::format(
        "unexpected argument {}: --hf takes the place of a RUN_FILE, and settings have the form section.key=VALUE\n"
        "help:  orthant plan --help",
        arguments.run_file));
  }
  if (arguments.run_file.empty() && arguments.hf.empty()) {
    throw UsageError("plan requires a RUN_FILE, or a model: --hf PATH run.ranks=N\nhelp:  orthant plan --help");
  }
  const Config config =
      arguments.hf.empty() ? load_run(arguments, 0, /*only_plans=*/true) : load_planned_model(arguments);
  if (arguments.print_config) {
    std::fputs(print_config(config).c_str(), stdout);
    return kDone;
  }
  RunFacts facts = arguments.hf.empty() ? facts_without_data(config, static_cast<int>(config.run.ranks))
                                        : facts_of_model(config);
  const std::string hardware =
      arguments.hardware.empty() && config.run.device == "cuda" ? "h100-8x" : arguments.hardware;
  if (!hardware.empty()) {
    facts.hardware = std::make_shared<const Hardware>(for_ranks_of_host(load_hardware(hardware), facts.ranks));
  }
  if (arguments.search) return search(arguments, config, facts);
  const Plan the_plan = advised_plan(config, facts);
  const Sections sections =
      arguments.json && arguments.show.empty() ? Sections::all() : Sections::named(arguments.show);
  std::fputs((arguments.json ? plan_json(the_plan, sections) : explain(the_plan, sections)).c_str(), stdout);
  if (!arguments.json && arguments.show.empty()) {
    std::fputs("\nmore with --show: memory, communication, schedule, layouts, or all\n", stdout);
  }
  // Too little memory is only a warning here, because the plan may be for other machines.
  const bool is_for_cpus = config.run.device == "cpu";
  const MemoryNeed need =
      is_for_cpus ? memory_need(the_plan, the_plan.mesh.size(), machine_memory()) : MemoryNeed();
  for (const std::string& warning : {need.warning, idle_ranks_warning(the_plan), empty_ranks_warning(the_plan),
                                     idle_settings_warning(the_plan)}) {
    if (!warning.empty()) fmt::print(stderr, "warning: {}\n", warning);
  }
  if (!arguments.svg.empty()) {
    write_file("--svg", arguments.svg, planned_svg(the_plan));
    if (!arguments.json) fmt::print("\nthe schedule is drawn in {}\n", arguments.svg);
  }
  return kDone;
}

}  // namespace orthant
