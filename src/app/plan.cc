// orthant plan: prints the layout, schedule, memory and communication of a run before it starts.
#include "plan/plan.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "advice/advised_plan.h"
#include "advice/answer.h"
#include "advice/auto_layout.h"
#include "advice/explain.h"
#include "advice/layout_search.h"
#include "advice/plan_json.h"
#include "advice/run_warnings.h"
#include "app/command_line.h"
#include "app/commands.h"
#include "app/run_setup.h"
#include "app/streams.h"
#include "base/clock.h"
#include "base/errors.h"
#include "library/run.h"
#include "plan/nccl_groups.h"
#include "plan/planned_operations.h"
#include "schedule/trace.h"

namespace orthant {
namespace {

// Too little memory is only a warning here, because the plan may be for other machines.
void warn_about(const Plan& plan) {
  const bool is_for_cpus = plan.config.run.device == "cpu";
  const MemoryNeed need = is_for_cpus ? memory_need(plan, plan.mesh.size(), machine_memory()) : MemoryNeed();
  for (const std::string& warning :
       {need.warning, idle_ranks_warning(plan), empty_ranks_warning(plan), idle_settings_warning(plan)}) {
    if (!warning.empty()) fmt::print(stderr, "warning: {}\n", warning);
  }
}

// Draws a progress bar if the search takes longer than two seconds, and another one if it then searches further.
SearchProgress long_progress() {
  return [start = Clock::now(), draw = SearchProgress(), further = false](int64_t done, int64_t total) mutable {
    if (!draw && seconds_since(start) > 2) {
      draw = further ? make_progress_callback("searching further", "layouts")
                     : make_progress_callback("searching", "meshes");
    }
    if (draw) draw(done, total);
    if (done == total) draw = {}, further = true;
  };
}

constexpr const char* kWrittenBySearch = "# Written by orthant plan --search.";

// Throws DataError if there is no folder for the file, and ConfigError if the file exists and does not begin like a
// file of this option. Does not read special files, such as a pipe.
void require_own_file(const std::string& option, const std::string& path, std::string_view own_begin) {
  if (path.empty()) return;
  std::error_code ignored;
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  if (!folder.empty() && !std::filesystem::is_directory(folder, ignored)) {
    throw DataError(fmt::format("{} {}: cannot be written: {}", option, path, std::strerror(ENOENT)));
  }
  if (!std::filesystem::is_regular_file(path, ignored)) return;
  std::ifstream file(path);
  std::string begin(own_begin.size(), '\0');
  file.read(begin.data(), static_cast<std::streamsize>(begin.size()));
  if (file.gcount() == 0 || begin == own_begin) return;
  throw ConfigError(
      fmt::format("{0} {1}: the file exists and was not written by {0}; name another file", option, path));
}

// Before anything is planned, so that no work is lost.
void check_files(const PlanArguments& arguments) {
  require_own_file("--write", arguments.write, kWrittenBySearch);
  require_own_file("--svg", arguments.svg, "<svg ");
  require_own_file("--trace", arguments.trace, "{\"displayTimeUnit\":");
  const std::vector<std::string> names = {arguments.write, arguments.svg, arguments.trace};
  for (size_t i = 0; i < names.size(); ++i) {
    if (names[i].empty() || std::ranges::count(names, names[i]) == 1) continue;
    throw ConfigError(fmt::format("--write, --svg and --trace must name different files, but two name {}", names[i]));
  }
}

// A run file with the layout. That of a bare model lacks what training needs.
std::string written_layout(const Config& config, bool of_model) {
  const char* missing =
      " Before training, set data.path, data.tokenizer, optimizer.lr and\n# training.steps, and model.from for the "
      "weights.";
  return fmt::format("{}{}\n\n{}", kWrittenBySearch, of_model ? missing : "", print_config(config));
}

Sections sections_of(const PlanArguments& arguments) {
  return arguments.json && arguments.show.empty() ? Sections::all() : Sections::named(arguments.show);
}

void draw(const PlanArguments& arguments, const Plan& plan) {
  if (arguments.svg.empty()) return;
  write_file("--svg", arguments.svg, planned_svg(plan));
  if (!arguments.json) fmt::print("\nthe schedule is drawn in {}\n", arguments.svg);
}

int search(const PlanArguments& arguments, const Config& config, const RunFacts& facts) {
  if (!facts.hardware) {
    throw UsageError("--search requires --hardware NAME, such as h100-8x or this-cpu\nhelp:  orthant plan --help");
  }
  const SearchResult result = search_layouts(config, facts, long_progress());
  const Sections sections = sections_of(arguments);
  std::string text = arguments.json ? search_json(result, facts, sections) : explain_search(result, *facts.hardware);
  if (result.fitting.empty()) {
    std::fputs(text.c_str(), stdout);
    if (result.planned == 0) advised_plan(config, facts);  // throws the law that excludes all layouts
    if (!arguments.write.empty()) {
      throw ConfigError(fmt::format("--write {}: no file was written, because no layout fits", arguments.write));
    }
    return result.planned > 0 ? kDone : kFailed;
  }
  Config best = result.fitting.front().config;
  if (!best.is_set("job.dump_folder") && !arguments.write.empty()) {
    best.job.dump_folder = "runs/" + std::filesystem::path(arguments.write).stem().string();
  }
  const Plan plan = make_plan(best, facts);
  if (!arguments.json) text += "\n" + (arguments.show.empty() ? explain_answer(plan) : explain(plan, sections));
  std::fputs(text.c_str(), stdout);
  warn_about(plan);
  draw(arguments, plan);
  if (!arguments.write.empty()) {
    write_file("--write", arguments.write, written_layout(best, !arguments.hf.empty()));
    if (!arguments.json) fmt::print("the best layout is in {}\n", arguments.write);
  }
  return kDone;
}

}  // namespace

int plan(const PlanArguments& given) {
  PlanArguments arguments = given;
  if (arguments.search) arguments.overrides.push_back("parallelism.layout=auto");  // the search chooses it
  if (!arguments.run_file.empty() && !arguments.hf.empty()) {
    throw UsageError(fmt::format(
        "unexpected argument {}: --hf takes the place of a RUN_FILE, and settings have the form section.key=VALUE\n"
        "help:  orthant plan --help",
        arguments.run_file));
  }
  if (arguments.run_file.ends_with(".json")) {
    throw UsageError(fmt::format("{} is no run file; to plan a model of Hugging Face, use --hf {} run.ranks=N\n"
                                 "help:  orthant plan --help",
                                 arguments.run_file, arguments.run_file));
  }
  if (arguments.run_file.empty() && arguments.hf.empty()) {
    throw UsageError("plan requires a RUN_FILE, or a model: --hf PATH run.ranks=N\nhelp:  orthant plan --help");
  }
  check_files(arguments);
  const auto [config, facts] = arguments.hf.empty() ? run_to_plan(load_config(arguments.run_file, arguments.overrides))
                                                    : model_to_plan(arguments.hf, arguments.overrides);
  const std::string& model = arguments.hf.empty() ? config.model.from : arguments.hf;
  if (!model.empty()) print_unknown_keys(model);
  if (arguments.print_config) {
    std::fputs(print_config(with_chosen_layout(config, facts)).c_str(), stdout);
    return kDone;
  }
  if (arguments.search) return search(arguments, config, facts);
  const Plan the_plan = advised_plan(config, facts);
  check_operations(the_plan);
  check_nccl_groups(the_plan);
  const Sections sections = sections_of(arguments);
  std::fputs((arguments.json ? plan_json(the_plan, sections) : explain(the_plan, sections)).c_str(), stdout);
  if (!arguments.json && arguments.show.empty()) {
    std::fputs("\nmore with --show: memory, communication, schedule, layouts, or all\n", stdout);
  }
  warn_about(the_plan);
  draw(arguments, the_plan);
  if (!arguments.trace.empty()) {
    const std::string& unit = the_plan.timeline.unit;
    write_file("--trace", arguments.trace, chrome_trace(the_plan.timeline));
    if (!arguments.json) {
      fmt::print("\nthe trace is in {}, for https://ui.perfetto.dev{}\n", arguments.trace,
                 unit == "s" ? "" : "; without --hardware, its seconds stand for " + unit);
    }
  }
  return kDone;
}

}  // namespace orthant
