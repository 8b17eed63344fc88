// The results of the search of layouts as a run, as text and as JSON.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "advice/layout_search.h"
#include "advice/memory_limit.h"
#include "advice/plan_json.h"
#include "base/errors.h"
#include "base/text.h"
#include "base/text_table.h"
#include "config/table.h"

namespace orthant {
namespace {

// The part of the step that grows most from the best layout to this one.
std::string reason(const FoundLayout& best, const FoundLayout& other) {
  const auto parts = [](const StepTime& time) {
    std::map<std::string, double> all = {{"products", time.passes.products},
                                         {"attention", time.passes.attention},
                                         {"other kernels", time.passes.kernels},
                                         {"idle", time.idle},
                                         {"waits for cores", time.sharing},
                                         {"reductions", time.reductions},
                                         {"update", time.update},
                                         {"gathers", time.gathers}};
    for (const auto& [axis, seconds] : time.passes.communication) all["messages over " + axis] = seconds;
    return all;
  };
  std::map<std::string, double> before = parts(best.time);
  std::string name;
  double most = 0;
  for (const auto& [part, seconds] : parts(other.time)) {
    if (seconds - before[part] > most) name = part, most = seconds - before[part];
  }
  return name.empty() ? "" : fmt::format("{} +{:.3g} s", name, most);
}

}  // namespace

const std::vector<std::string>& searched_keys() {
  static const std::vector<std::string> keys = {"parallelism.layout",
                                                "parallelism.tensor_parallel_kind",
                                                "parallelism.tensor_parallel_degree",
                                                "parallelism.tensor_parallel_mesh",
                                                "parallelism.tensor_parallel_sequence",
                                                "parallelism.pipeline_parallel_degree",
                                                "parallelism.context_parallel_ulysses",
                                                "parallelism.context_parallel_ring",
                                                "parallelism.data_parallel_degree",
                                                "parallelism.zero_stage",
                                                "parallelism.zero_reshard",
                                                "parallelism.data_parallel_replicate_degree",
                                                "parallelism.pipeline_parallel_schedule",
                                                "parallelism.pipeline_parallel_stages_per_rank",
                                                "parallelism.vocabulary_parallel",
                                                "activation_checkpoint.mode",
                                                "activation_checkpoint.operations",
                                                "training.local_batch_size"};
  return keys;
}

Config with_chosen_layout(const Config& config, const RunFacts& facts) {
  if (config.parallelism.layout != "auto") return config;
  RunFacts with_hardware = facts;
  if (!facts.hardware) {
    const char* const name = config.run.device == "cuda" ? "h100-8x" : "this-cpu";
    with_hardware.hardware = std::make_shared<const Hardware>(load_hardware(name));
  }
  const SearchResult result = search_layouts(config, with_hardware);
  if (!result.fitting.empty()) return result.fitting.front().config;
  const std::string where = config.locate("parallelism.layout");
  if (!result.smallest) {
    throw ConfigError(fmt::format("{} finds no legal layout of {}; set fewer keys, or change run.ranks", where,
                                  counted(facts.ranks, "rank")));
  }
  throw ConfigError(fmt::format("{} finds no layout that fits: the smallest needs {} on a rank: {}; use more ranks, or "
                                "set run.memory_gib_per_rank to {} or more",
                                where, gib_text(result.smallest->memory_bytes), result.smallest->name,
                                gib_number(result.smallest->memory_bytes)));
}

std::string explain_search(const SearchResult& result, const Hardware& hardware) {
  std::string text = fmt::format("search on {}: {} planned, {} fit; {} of {} meshes left out by bounds\n",
                                 hardware.name, counted(result.planned, "layout"), result.fitting.size(),
                                 result.left_out, result.shapes);
  if (result.fitting.empty()) {
    if (!result.smallest) return text + "  no layout of these ranks is legal\n";
    return text + fmt::format("  no layout fits; the least memory is {} on a rank: {}\n",
                              format_bytes(static_cast<double>(result.smallest->memory_bytes)), result.smallest->name);
  }
  const FoundLayout& best = result.fitting.front();
  std::vector<std::vector<std::string>> rows = {{"step", "MFU", "memory", "layout", "slower than the best by"}};
  std::set<std::string> kinds;
  for (size_t i = 0; i < result.fitting.size(); ++i) {
    const FoundLayout& found = result.fitting[i];
    const bool is_first_of_kind = kinds.insert(found.kind).second;
    if (i >= kShown && !is_first_of_kind) continue;
    rows.push_back({fmt::format("{:.4g} s", found.time.seconds), fmt::format("{:.1f} %", 100 * found.mfu),
                    format_bytes(static_cast<double>(found.memory_bytes)), found.name,
                    i == 0 ? "" : reason(best, found)});
  }
  return text + text_table(rows) +
         fmt::format("  The first {} rows are the best; each row after them is the fastest that was found of another\n"
                     "  combination of tensor, sequence, data and pipeline ranks.\n",
                     std::min(kShown, result.fitting.size()));
}

std::string search_json(const SearchResult& result, const RunFacts& facts) {
  using Json = nlohmann::ordered_json;
  Json out = {{"version", kPlanJsonVersion}};
  const FoundLayout* shown = result.fitting.empty() ? nullptr : &result.fitting.front();
  if (!shown && result.smallest) shown = &*result.smallest;
  if (shown) out = Json::parse(plan_json(make_plan(shown->config, facts), {}));
  out["searched"] = {{"planned", result.planned},
                     {"refused", result.refused},
                     {"meshes", result.shapes},
                     {"left_out", result.left_out}};
  out["search"] = Json::array();
  for (const FoundLayout& found : result.fitting) {
    Json settings = Json::object();
    Config config = found.config;
    for (const std::string& name : searched_keys()) settings[name] = Json::parse(value_text(*find_key(name), config));
    out["search"].push_back({{"settings", settings},
                             {"step_seconds", found.time.seconds},
                             {"memory_bytes", found.memory_bytes},
                             {"mfu", found.mfu}});
  }
  return out.dump(2) + "\n";
}

}  // namespace orthant
