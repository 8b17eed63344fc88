#include "advice/auto_layout.h"

#include <fmt/format.h>

#include "advice/layout_search.h"
#include "advice/tensor_choices.h"
#include "base/text.h"

namespace orthant {
namespace {

// Throws the refusal of the run with one rank on every axis whose key is not set: the law that excludes all layouts, if
// one key breaks it. Returns if this run is legal.
void refuse_given_keys(Config config, const RunFacts& facts) {
  config.parallelism.layout = ParallelismConfig().layout;
  const bool needs_stage = config.is_set("parallelism.data_parallel_shard_degree") ||
                           config.is_set("parallelism.data_parallel_replicate_degree") ||
                           config.is_set("parallelism.zero_reshard");
  if (needs_stage && !config.is_set("parallelism.zero_stage")) config.parallelism.zero_stage = 3;
  check_config(config, {.only_plans = true, .nccl = true, .no_ucx = {}});
  check_legal_plan(config, facts);
}

}  // namespace

std::shared_ptr<const Hardware> find_hardware(const Config& config, int ranks) {
  const std::string& given = config.run.hardware;
  if (given.empty() && config.run.device == "cpu") return nullptr;
  const Hardware hardware = load_hardware(given.empty() ? "h100-8x" : given);
  return std::make_shared<const Hardware>(for_ranks_of_host(hardware, ranks));
}

Config with_chosen_layout(const Config& config, const RunFacts& facts) {
  if (config.parallelism.layout != "auto") return config;
  RunFacts with_hardware = facts;
  if (!facts.hardware) {
    Config named = config;
    if (config.run.hardware.empty() && config.run.device == "cpu") named.run.hardware = "this-cpu";
    with_hardware.hardware = find_hardware(named, facts.ranks);
  }
  const SearchResult result = search_layouts(config, with_hardware);
  if (!result.fitting.empty()) return result.fitting.front().config;
  const std::string where = config.locate("parallelism.layout");
  if (!result.smallest) {
    refuse_given_keys(config, facts);
    throw ConfigError(fmt::format("{} finds no legal layout of {}; set fewer keys, or change run.ranks", where,
                                  counted(facts.ranks, "rank")));
  }
  throw ConfigError(fmt::format("{} finds no layout that fits: {}", where,
                                smallest_text(*result.smallest, *with_hardware.hardware)));
}

}  // namespace orthant
