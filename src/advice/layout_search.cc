#include "advice/layout_search.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>

#include "advice/answer.h"
#include "advice/candidates.h"
#include "advice/memory_limit.h"
#include "advice/zero_choices.h"
#include "base/errors.h"
#include "base/text.h"
#include "base/text_table.h"
#include "config/table.h"

namespace orthant {
namespace {

constexpr size_t kRefined = 12;  // layouts of the first part that the second part plans again
constexpr size_t kShown = 10;
constexpr int kMostSequenceRanks = 64;

const std::vector<std::string> kSearchedKeys = {"parallelism.tensor_parallel_degree",
                                                "parallelism.pipeline_parallel_degree",
                                                "parallelism.context_parallel_ulysses",
                                                "parallelism.context_parallel_ring",
                                                "parallelism.data_parallel_degree",
                                                "parallelism.zero_stage",
                                                "parallelism.zero_reshard",
                                                "parallelism.pipeline_parallel_schedule",
                                                "parallelism.vocabulary_parallel",
                                                "activation_checkpoint.mode",
                                                "activation_checkpoint.operations",
                                                "training.local_batch_size"};

std::string recomputation_text(const ActivationCheckpointConfig& setting) {
  if (setting.mode == "none") return "";
  return "; recomputes " + (setting.mode == "full" ? "blocks" : join(setting.operations, " + "));
}

class LayoutSearch {
 public:
  LayoutSearch(const Config& config, const RunFacts& facts) : base_(config), facts_(facts) {
    base_.run.ranks = facts.ranks;
  }

  SearchResult run() {
    for (const int64_t tensor : choices("parallelism.tensor_parallel_degree", divisors_of(facts_.ranks),
                                        base_.parallelism.tensor_parallel_degree)) {
      if (tensor > facts_.hardware->device.per_host) break;  // its messages are in every layer
      const int64_t rest = facts_.ranks / tensor;
      for (const int64_t pipeline : choices("parallelism.pipeline_parallel_degree", divisors_of(rest),
                                            base_.parallelism.pipeline_parallel_degree)) {
        if (pipeline <= base_.model.num_hidden_layers) search_sequences(tensor, pipeline, rest / pipeline);
      }
    }
    refine();
    std::ranges::stable_sort(result_.fitting, {}, [](const FoundLayout& found) { return found.time.seconds; });
    return std::move(result_);
  }

 private:
  bool is_set(const std::string& key) const {
    const auto origin = base_.origins.find(key);
    return origin != base_.origins.end() && !origin->second.starts_with("default");
  }
  /// The values to try of a key: its own if the user has set it.
  std::vector<int64_t> choices(const std::string& key, std::vector<int64_t> all, int64_t own) const {
    return is_set(key) ? std::vector{own} : all;
  }

  /// Tries longer sequence axes until a layout fits.
  void search_sequences(int64_t tensor, int64_t pipeline, int64_t rest) {
    const bool is_given = is_set("parallelism.context_parallel_ulysses") || is_set("parallelism.context_parallel_ring");
    const auto& p = base_.parallelism;
    for (const int64_t ranks : divisors_of(rest)) {
      if (ranks > kMostSequenceRanks) return;
      if (is_given && ranks != p.context_parallel_ulysses * p.context_parallel_ring) continue;
      const size_t fitting = result_.fitting.size();
      for (const int64_t ulysses : divisors_of(ranks)) {
        if (is_given && ulysses != p.context_parallel_ulysses) continue;
        Config config = base_;
        config.parallelism.tensor_parallel_degree = tensor;
        config.parallelism.pipeline_parallel_degree = pipeline;
        config.parallelism.context_parallel_ulysses = ulysses;
        config.parallelism.context_parallel_ring = ranks / ulysses;
        config.parallelism.data_parallel_degree = rest / ranks;
        search_states(config);
      }
      if (result_.fitting.size() > fitting) return;
    }
  }

  /// Tries every stage of ZeRO.
  void search_states(const Config& config) {
    if (is_set("parallelism.zero_stage") || is_set("parallelism.zero_reshard")) return search_recomputation(config);
    const auto try_zero = [&](int64_t stage, Reshard reshard) {
      Config other = config;
      set_zero(other.parallelism, stage, reshard);
      search_recomputation(other);
    };
    const int64_t copies =
        facts_.ranks / (config.parallelism.tensor_parallel_degree * config.parallelism.pipeline_parallel_degree);
    try_zero(0, Reshard::step);
    if (copies == 1) return;
    for (const int64_t stage : {1, 2}) try_zero(stage, Reshard::step);
    for (const Reshard reshard : {Reshard::step, Reshard::never, Reshard::microbatch}) try_zero(3, reshard);
  }

  /// Tries more and more recomputation until the layout fits. More recomputation never makes a step shorter.
  void search_recomputation(const Config& config) {
    if (is_set("activation_checkpoint.mode")) return (void)add(config);
    const std::vector<ActivationCheckpointConfig> ladder = {
        {.mode = "none"},
        {.mode = "selective", .operations = {"norms", "swiglu"}},
        {.mode = "selective", .operations = {"norms", "attention", "swiglu"}},
        {.mode = "full"}};
    for (const ActivationCheckpointConfig& setting : ladder) {
      Config other = config;
      other.activation_checkpoint = setting;
      if (add(other) != Outcome::too_large) return;
    }
  }

  /// Plans the best layouts again with other settings of the order of passes.
  void refine() {
    std::ranges::stable_sort(result_.fitting, {}, [](const FoundLayout& found) { return found.time.seconds; });
    const std::vector<FoundLayout> best(
        result_.fitting.begin(),
        result_.fitting.begin() + static_cast<std::ptrdiff_t>(std::min(kRefined, result_.fitting.size())));
    for (const FoundLayout& found : best) {
      const auto try_with = [&](const std::string& key, const auto& change) {
        Config other = found.config;
        change(other);
        if (!is_set(key)) add(other);
      };
      for (const int64_t factor : {2, 4}) {
        try_with("training.local_batch_size", [&](Config& c) { c.training.local_batch_size *= factor; });
      }
      if (found.config.parallelism.pipeline_parallel_degree == 1) continue;
      for (const char* schedule : {"interleaved_1f1b", "zb_h1", "zb_v"}) {
        try_with("parallelism.pipeline_parallel_schedule",
                 [&](Config& c) { c.parallelism.pipeline_parallel_schedule = schedule; });
      }
      for (const char* placement : {"algorithm_2", "redistribution"}) {
        try_with("parallelism.vocabulary_parallel", [&](Config& c) { c.parallelism.vocabulary_parallel = placement; });
      }
    }
  }

  enum class Outcome { fits, too_large, refused };
  Outcome add(const Config& config) {
    try {
      check_config(config, {.only_plans = true, .nccl = true, .no_ucx = {}});
      const Plan plan = make_plan(config, facts_);
      ++result_.planned;
      FoundLayout found = layout_of(plan);
      if (!result_.smallest || found.memory_bytes < result_.smallest->memory_bytes) result_.smallest = found;
      if (!fits_a_device(plan, found.memory_bytes)) return Outcome::too_large;
      result_.fitting.push_back(std::move(found));
      return Outcome::fits;
    } catch (const ConfigError&) {
      ++result_.refused;
      return Outcome::refused;
    }
  }

  static FoundLayout layout_of(const Plan& plan) {
    std::string name = plan.mesh_and_kind();
    if (plan.schedule.rows.size() > 1) name += "; " + schedule_text(plan.config);
    name += recomputation_text(plan.config.activation_checkpoint);
    if (const int64_t local = plan.config.training.local_batch_size; local > 1) {
      name += fmt::format("; microbatches of {}", local);
    }
    std::vector<std::string> axes;
    for (const Axis& axis : plan.mesh.axes) {
      if (axis.size > 1) axes.push_back(axis.name);
    }
    return {.config = plan.config,
            .name = std::move(name),
            .axes = join(axes, " + "),
            .time = *plan.step_time,
            .mfu = model_flops_utilization(plan, plan.step_time->seconds, true),
            .memory_bytes = plan.largest_memory_bytes()};
  }

  Config base_;
  const RunFacts& facts_;
  SearchResult result_;
};

// The part of the step that grows most from the best layout to this one.
std::string reason(const FoundLayout& best, const FoundLayout& other) {
  const auto parts = [](const StepTime& time) {
    std::map<std::string, double> all = {{"products", time.passes.products},
                                         {"attention", time.passes.attention},
                                         {"other kernels", time.passes.kernels},
                                         {"idle", time.idle},
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

SearchResult search_layouts(const Config& config, const RunFacts& facts) { return LayoutSearch(config, facts).run(); }

std::string explain_search(const SearchResult& result, const Hardware& hardware) {
  std::string text = fmt::format("search on {}: {} planned, {} refused, {} fit\n", hardware.name,
                                 counted(result.planned, "layout"), result.refused, result.fitting.size());
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
    const bool is_first_of_kind = kinds.insert(found.axes).second;
    if (i >= kShown && !is_first_of_kind) continue;
    rows.push_back({fmt::format("{:.4g} s", found.time.seconds), fmt::format("{:.1f} %", 100 * found.mfu),
                    format_bytes(static_cast<double>(found.memory_bytes)), found.name,
                    i == 0 ? "" : reason(best, found)});
  }
  return text + text_table(rows) +
         fmt::format("  The first {} rows are the best; each row after them is the best with its axes.\n",
                     std::min(kShown, result.fitting.size()));
}

std::string search_json(const SearchResult& result) {
  using Json = nlohmann::ordered_json;
  Json out = {{"version", 1}, {"planned", result.planned}, {"refused", result.refused}, {"search", Json::array()}};
  for (const FoundLayout& found : result.fitting) {
    Json settings = Json::object();
    Config config = found.config;
    for (const Key& key : config_table()) {
      if (std::ranges::find(kSearchedKeys, key.full_name()) == kSearchedKeys.end()) continue;
      settings[key.full_name()] = value_text(key, config);
    }
    out["search"].push_back({{"settings", settings},
                             {"step_seconds", found.time.seconds},
                             {"memory_bytes", found.memory_bytes},
                             {"mfu", found.mfu}});
  }
  return out.dump(2) + "\n";
}

}  // namespace orthant
