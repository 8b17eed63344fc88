// Plans the run again for each layout.
#include "advice/layouts.h"

#include <fmt/format.h>

#include <algorithm>

#include "advice/zero_choices.h"
#include "base/errors.h"
#include "base/text.h"
#include "base/text_table.h"
#include "config/table.h"

namespace orthant {
namespace {

// Returns the axes of the plan, its stage of ZeRO, and its algorithm on the ring if that is not ring attention.
std::string layout_name(const Plan& plan) {
  return plan.mesh_and_kind() +
         (plan.sequence.method == SequenceMethod::ring_self_attention ? "; ring self-attention" : "");
}

class Layouts {
 public:
  explicit Layouts(const Plan& plan) : plan_(plan), ranks_(plan.mesh.size()) {}

  std::vector<Alternative> all() {
    for (const int64_t stage : {0, 1, 3}) {
      add(fmt::format("data {}{}", ranks_, stage > 0 ? fmt::format(", ZeRO {}", stage) : ""),
          [&](ParallelismConfig& p) { set_zero(p, stage); });
    }
    add(fmt::format("column {}", ranks_), [&](ParallelismConfig& p) { p.tensor_parallel_degree = ranks_; });
    add(fmt::format("pipeline {}", ranks_), [&](ParallelismConfig& p) { p.pipeline_parallel_degree = ranks_; });
    add_sequences();
    return std::move(found_);
  }

 private:
  // Plans the run with all ranks over data, changed by `change`.
  template <class Change>
  void add(const std::string& name, const Change& change) {
    Config other = plan_.config;
    other.parallelism = {.bucket_mib = plan_.config.parallelism.bucket_mib};
    change(other.parallelism);
    add_config(name, other, true);
  }

  void add_config(const std::string& name, Config config, bool shows_refusal) {
    for (const Key& key : config_table()) {
      if (value_text(key, config) != value_text(key, plan_.config)) config.origins[key.full_name()] = "this layout";
    }
    Alternative layout;
    layout.change = name;
    try {
      check_config(config, {.only_plans = true, .nccl = true, .no_ucx = {}});
      const Plan other = make_plan(config, plan_.facts);
      layout = alternative(layout_name(other), other);
      const auto idle =
          std::ranges::count_if(other.data_shards, [](const DataShard& s) { return s.sequences.size() == 0; });
      if (idle > 0) {
        layout.refusal = fmt::format("{} gives no sequence to {} of {} data ranks",
                                     config.locate("training.global_batch_size"), idle, other.data_shards.size());
      }
    } catch (const ConfigError& error) {
      if (!shows_refusal) return;
      layout.refusal = error.what();
    }
    const auto is_same = [&](const Alternative& known) { return known.change == layout.change; };
    if (layout.change != layout_name(plan_) && std::ranges::none_of(found_, is_same)) found_.push_back(layout);
  }

  void add_sequences() {
    const int64_t own = plan_.sequence.ulysses * plan_.sequence.ring, sharded = own > 1 ? own : ranks_;
    for (int64_t ulysses = sharded; ulysses >= 1; --ulysses) {
      if (sharded % ulysses != 0) continue;
      for (const char* attention : {"ring_attention", "ring_self_attention"}) {
        if (ulysses == sharded && attention != std::string("ring_attention")) continue;
        Config other = plan_.config;
        if (own == 1) other.parallelism = {.bucket_mib = plan_.config.parallelism.bucket_mib};
        auto& p = other.parallelism;
        const std::string& placement = plan_.config.parallelism.context_parallel_placement;
        p.context_parallel_ulysses = ulysses;
        p.context_parallel_ring = sharded / ulysses;
        p.context_parallel_attention = attention;
        p.context_parallel_placement = plan_.sequence.ring > 1       ? placement
                                       : plan_.architecture.causal() ? "zigzag"
                                                                     : "contiguous";
        if (ulysses == sharded) p.context_parallel_placement = ParallelismConfig().context_parallel_placement;
        if (plan_.sequence.ring != p.context_parallel_ring) p.context_parallel_window = 0;
        add_config("", other, false);
      }
    }
  }

  const Plan& plan_;
  const int64_t ranks_;
  std::vector<Alternative> found_;
};

}  // namespace

std::vector<Alternative> other_layouts(const Plan& plan) {
  if (plan.mesh.size() == 1 || plan.sequence.method == SequenceMethod::linformer) return {};
  return Layouts(plan).all();
}

std::string explain_layouts(const Plan& plan) {
  if (plan.sequence.method == SequenceMethod::linformer) {
    return "  not compared: Linformer computes another function than full attention, so the layouts of full attention "
           "are no alternatives\n";
  }
  std::vector<Alternative> layouts = other_layouts(plan);
  if (layouts.empty()) return "";
  layouts.insert(layouts.begin(), alternative(layout_name(plan), plan));
  layouts.front().remark = "as planned";
  std::string refused;
  for (const Alternative& layout : layouts) {
    if (!layout.is_legal()) refused += fmt::format("  {} is left out: {}\n", layout.change, layout.refusal);
  }
  std::erase_if(layouts, [](const Alternative& layout) { return !layout.is_legal(); });
  const bool all_fit = std::ranges::all_of(layouts, [](const Alternative& one) { return one.fits; });
  // Marks the least of those that fit.
  const auto mark = [&](const std::string& text, auto value) {
    Alternative* least = nullptr;
    for (Alternative& layout : layouts) {
      if (!layout.fits) continue;
      if (least == nullptr || value(layout) < value(*least)) least = &layout;
    }
    if (least == nullptr) return;
    least->remark += (least->remark.empty() ? "" : ", ") + text + (all_fit ? " of these" : " of these that fit");
  };
  if (plan.step_time) mark("fastest", [](const Alternative& layout) { return layout.step_seconds; });
  mark("sends least", [](const Alternative& layout) { return layout.sent_bytes; });
  mark("holds least", [](const Alternative& layout) { return layout.memory_bytes; });
  return alternatives_table(plan, "layout", layouts) + refused;
}

}  // namespace orthant
