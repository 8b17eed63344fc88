// Plans the run again on every tensor mesh with the same number of ranks, and selects the cheapest.
#include "advice/tensor_choices.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <tuple>

#include "base/errors.h"
#include "base/text.h"
#include "base/text_table.h"
#include "config/refusal.h"
#include "config/table.h"
#include "config/tensor_check.h"

namespace orthant {
namespace {


// Returns the tokens of one replica of the tensor mesh in a step.
double tokens_of(const Plan& plan) {
  const double replicas = data_ranks(plan.mesh) * plan.sequence.ulysses * plan.sequence.ring;
  return static_cast<double>(plan.tokens_per_step()) / replicas;
}

// Returns the fraction of the layers' backwards that the schedule splits into I and W.
double split_share(const Plan& plan) {
  double split = 0, all = 0;
  for (const auto& row : plan.schedule.rows) {
    for (const Action& action : row) {
      if (action.kind != ActionKind::B && action.kind != ActionKind::I) continue;
      const auto layers = static_cast<double>(plan.stages[static_cast<size_t>(action.stage)].layers.size());
      all += layers;
      if (action.kind == ActionKind::I) split += layers;
    }
  }
  return split / all;
}

// Returns the elements received per step for one layer's products. Every microbatch gathers the weights again, and
// the blocks that recompute repeat a part of the forward's.
TensorVolume count_received_elements_per_step(const Plan& plan, const TensorPlan& tensor) {
  const auto& training = plan.config.training;
  const int num_data_shards = data_ranks(plan.mesh) * tensor.rows * tensor.depth;
  const int microbatches = num_microbatches(training.global_batch_size, training.local_batch_size, num_data_shards);
  const std::vector<LinearShape> linears = linear_shapes(block_operations(plan.architecture));
  TensorVolume elements = count_received_elements(tensor, linears, tokens_of(plan) / microbatches, split_share(plan));
  elements.forward *= microbatches;
  elements.backward *= microbatches;
  const Recomputation recompute = make_recomputation(plan.config);
  const int64_t layers = plan.architecture.num_hidden_layers;
  const double recomputing = static_cast<double>(recompute.num_layers(0, layers)) / static_cast<double>(layers);
  const std::vector<LinearShape> repeated = linear_shapes(recompute.repeated(block_operations(plan.architecture)));
  const TensorVolume again = count_received_elements(tensor, repeated, tokens_of(plan) / microbatches);
  elements.backward += recomputing * microbatches * again.forward;
  return elements;
}

std::string name_of(const TensorPlan& tensor) {
  const std::string columns = counted(tensor.columns, "column");
  if (tensor.stream == StreamSharding::none) return fmt::format("1d, {}", columns);
  if (tensor.stream == StreamSharding::tokens) return fmt::format("1d, {}, sequence", columns);
  return fmt::format("[{}, {}, {}]{}", tensor.rows, tensor.columns, tensor.depth,
                     tensor.form == ProductForm::summa ? ", summa" : "");
}

bool same(const TensorPlan& a, const TensorPlan& b) {
  return a.rows == b.rows && a.columns == b.columns && a.depth == b.depth && a.stream == b.stream && a.form == b.form;
}

// Returns with_tensor_plan(). Its keys have the origin kChosenByAuto unless the run file sets them to these values.
Config chosen(const Config& config, const TensorPlan& tensor) {
  Config out = with_tensor_plan(config, tensor);
  for (const char* name : {"kind", "degree", "mesh", "sequence", "product"}) {
    const std::string key = std::string("parallelism.tensor_parallel_") + name;
    const Key& entry = *find_key(key);
    const bool asked = config.origins.contains(key) && value_text(entry, config) == value_text(entry, out);
    if (!asked) out.origins[key] = kChosenByAuto;
  }
  return out;
}

std::string elements_text(double elements) { return grouped(static_cast<int64_t>(elements + 0.5)); }

}  // namespace

Config with_tensor_plan(Config config, const TensorPlan& tensor) {
  auto& p = config.parallelism;
  const ParallelismConfig defaults;
  p.tensor_parallel_degree = defaults.tensor_parallel_degree;
  p.tensor_parallel_mesh = defaults.tensor_parallel_mesh;
  p.tensor_parallel_sequence = tensor.stream != StreamSharding::none;
  p.tensor_parallel_product = tensor.form == ProductForm::summa ? "summa" : "stationary";
  if (tensor.stream == StreamSharding::width) {
    p.tensor_parallel_kind = tensor.depth > 1 ? "2.5d" : "2d";
    p.tensor_parallel_mesh = {tensor.rows, tensor.columns, tensor.depth};
  } else {
    p.tensor_parallel_kind = "1d";
    p.tensor_parallel_degree = tensor.columns;
  }
  return config;
}

std::vector<TensorChoice> tensor_choices(const Plan& plan) {
  std::vector<TensorChoice> choices;
  if (plan.tensor.ranks() == 1) return choices;
  for (TensorPlan tensor : tensor_arrangements(plan.tensor.ranks())) {
    // On a mesh of one row and one column no product is sharded, and the form has no effect.
    if (tensor.stream == StreamSharding::width && tensor.rows * tensor.columns > 1) tensor.form = plan.tensor.form;
    TensorChoice& choice = choices.emplace_back();
    choice.name = name_of(tensor);
    choice.tensor = tensor;
    choice.chosen = same(tensor, plan.tensor);
    choice.received_elements = count_received_elements_per_step(plan, tensor);
    try {
      set_costs(choice, make_plan(with_tensor_plan(plan.config, tensor), plan.facts));
    } catch (const ConfigError& error) {
      const auto misfit = find_tensor_refusal(plan.config, tensor, plan.sequence, data_ranks(plan.mesh));
      choice.refusal = misfit ? misfit->what() : error.what();
    }
  }
  return choices;
}

namespace {

constexpr const char* kDegree = "parallelism.tensor_parallel_degree";

// Returns the refusal of a degree for which no mesh is legal. `first` is the refusal of the first mesh.
Refusal without_mesh(const Config& config, const Refusal& first) {
  std::vector<std::string> keys = {kDegree, "parallelism.tensor_parallel_kind"};
  for (const std::string& key : first.keys) {
    if (!key.starts_with("parallelism.tensor_parallel")) keys.insert(keys.end() - 1, key);
  }
  return Refusal(fmt::format("{} must have a legal mesh; of its meshes the first is refused: {}",
                             config.locate(kDegree), first.what()),
                 keys, first.numbers);
}

}  // namespace

void check_legal_plan(const Config& config, const RunFacts& facts) {
  if (config.parallelism.tensor_parallel_kind != "auto") return check_plan(config, facts);
  std::optional<Refusal> first;
  for (const TensorPlan& tensor : tensor_arrangements(make_mesh(config, facts.ranks).axis_size(kColumn))) {
    try {
      return check_plan(with_tensor_plan(config, tensor), facts);
    } catch (const Refusal& refusal) {
      if (!first) first = refusal;
    }
  }
  throw without_mesh(config, *first);
}

Config with_chosen_tensor_plan(const Config& config, const RunFacts& facts) {
  if (config.parallelism.tensor_parallel_kind != "auto") return config;
  check_legal_plan(config, facts);
  const int ranks = make_mesh(config, facts.ranks).axis_size(kColumn);
  std::vector<TensorChoice> choices;
  for (const TensorPlan& tensor : tensor_arrangements(ranks)) {
    try {
      TensorChoice& choice = choices.emplace_back();
      choice.tensor = tensor;
      set_costs(choice, make_plan(with_tensor_plan(config, tensor), facts));
    } catch (const Refusal&) {
      choices.pop_back();  // another mesh is legal
    }
  }
  ORTHANT_CHECK(!choices.empty(), config.run.ranks);
  const TensorChoice* const best = recommended(choices);
  return chosen(config, (best ? *best : *std::ranges::min_element(choices, {}, &TensorChoice::memory_bytes)).tensor);
}

const TensorChoice* recommended(const std::vector<TensorChoice>& choices) {
  const TensorChoice* best = nullptr;
  const auto cost = [](const TensorChoice& c) { return std::tuple(c.step_seconds, c.sent_bytes, c.memory_bytes); };
  for (const TensorChoice& choice : choices) {
    if (choice.fits && (best == nullptr || cost(choice) < cost(*best))) best = &choice;
  }
  return best;
}

double received_elements_bound(const Plan& plan) {
  double bound = 0;
  for (const LinearShape& linear : linear_shapes(block_operations(plan.architecture))) {
    bound += product_bound(tokens_of(plan), static_cast<double>(linear.out), static_cast<double>(linear.in),
                           plan.tensor.ranks());
  }
  return bound;
}

std::string explain_tensor_choices(const Plan& plan) {
  const std::vector<TensorChoice> choices = tensor_choices(plan);
  if (choices.empty()) return "";
  const TensorChoice* const best = recommended(choices);
  std::vector<std::vector<std::string>> rows = {{"mesh", "step", "memory of a rank", "sent by a rank",
                                                 "layer: elements received forward", "backward", "over depth", ""}};
  for (const TensorChoice& choice : choices) {
    const bool is_legal = choice.is_legal();
    std::vector<std::string> remarks;
    if (choice.chosen) remarks.push_back("as planned");
    if (&choice == best) remarks.push_back(plan.step_time ? "fastest" : "sends least");
    if (!is_legal) remarks.push_back("refused: " + choice.refusal);
    if (is_legal && !choice.fits) remarks.push_back("does not fit");
    rows.push_back({choice.name, is_legal ? precise_seconds(choice.step_seconds) : "",
                    is_legal ? format_bytes(static_cast<double>(choice.memory_bytes)) : "",
                    is_legal ? format_bytes(static_cast<double>(choice.sent_bytes)) : "",
                    elements_text(choice.received_elements.forward), elements_text(choice.received_elements.backward),
                    elements_text(choice.received_elements.depth), join(remarks, "; ")});
  }
  if (!plan.step_time) {
    for (auto& row : rows) row.erase(row.begin() + 1);
  }
  std::string out = text_table(rows);
  out += fmt::format("  lower bound forward for meshes without depth: {} elements (Al Daas et al. 2022)\n",
                     elements_text(received_elements_bound(plan)));
  const auto own = std::find_if(choices.begin(), choices.end(),
                                [](const TensorChoice& choice) { return choice.chosen; });
  if (best != nullptr && !best->chosen && own != choices.end()) {
    out += plan.step_time ? fmt::format("  with {} a step takes {:.2f} times as long as planned\n", best->name,
                                        best->step_seconds / own->step_seconds)
                          : fmt::format("  {} sends {:.2f} times the bytes of the plan\n", best->name,
                                        static_cast<double>(best->sent_bytes) / static_cast<double>(own->sent_bytes));
  }
  return out;
}

}  // namespace orthant
