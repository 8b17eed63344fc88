// Counts bytes of one layer under each way to distribute it, and writes the comparison as a table.
#include "advice/layer_choices.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <tuple>
#include <utility>

#include "advice/attention_time.h"
#include "base/errors.h"
#include "base/text.h"
#include "base/text_table.h"
#include "mesh/collective.h"
#include "plan/microbatch_memory.h"
#include "plan/plan.h"
#include "plan/plan_limits.h"

namespace orthant {
namespace {

// The layouts of weights, gradients and optimizer state over data ranks.
struct ZeroSettings {
  int64_t stage = 0;
  Reshard reshard = Reshard::step;
  int copies = 1;  // of the sharded states

  std::string name() const {
    if (stage == 0) return "";
    return fmt::format(", ZeRO {}{}{}", stage, stage == 3 ? ", " + name_of(reshard) : "",
                       copies > 1 ? fmt::format(", {} copies", copies) : "");
  }
};

// Sizes of one layer of the plan's model, and costs of it that several choices share.
struct Layer {
  explicit Layer(const Plan& plan_in) : plan(plan_in), a(plan_in.architecture), ranks(plan_in.mesh.size()) {
    element = dtype_bytes(plan.config.training.dtype);
    master = master_bytes(plan.config);
    const std::vector<Operation> operations = block_operations(a);
    const Recomputation recompute = make_recomputation(plan.config);
    block = column_operations(operations, {}, 0);
    recomputed = recompute.ranges(operations);
    repeated = recompute.repeated(operations);
    repeats_attention = recompute.repeats_attention(operations);
    for (const auto& parameter : plan.parameters) {
      if (parameter.layer != 0) continue;
      parameters += parameter.size();
      optimizer_state += parameter.size() * state_bytes(plan.config.optimizer, parameter, master);
    }
    const auto& t = plan.config.training;
    step_row = t.global_batch_size * t.seq_len * a.hidden_size;
  }

  // Returns the elements that the busiest rank sends in one collective over `elements` elements and all ranks.
  int64_t sent(CollectiveKind kind, int64_t elements) const {
    return max_elements_sent(kind, ranks, std::array{elements});
  }
  // Returns the bytes of gradients that are kept between passes: none with updates in backward.
  int64_t gradients() const { return plan.config.optimizer.in_backward ? 0 : parameters * master; }
  int64_t working_copy() const { return element == master ? 0 : parameters * element; }
  // Returns the bytes of master weights and optimizer state.
  int64_t optimizer() const { return parameters * master + optimizer_state; }
  // Returns the bytes that ZeRO 1 shards: the optimizer's state, and masters of another dtype than the weights.
  int64_t shardable() const { return optimizer_state + (element == master ? 0 : parameters * master); }
  // Returns the bytes of weights, gradients and optimizer state that a rank keeps.
  int64_t state(const ZeroSettings& zero = {}) const {
    const int64_t sharded = (zero.stage >= 1 ? shardable() : 0) + (zero.stage >= 2 ? gradients() : 0) +
                            (zero.stage >= 3 ? parameters * element : 0);
    return shardable() + gradients() + parameters * element - sharded + sharded * zero.copies / ranks;
  }
  // Returns the bytes that the busiest rank sends for gradients and weights. Copies are summed once a step.
  int64_t parameter_bytes(const ZeroSettings& zero, int data) const {
    if (zero.stage == 0) return sent(CollectiveKind::all_reduce, parameters) * master;
    const auto& t = plan.config.training;
    const int shards = ranks / zero.copies;
    const int64_t microbatches = num_microbatches(t.global_batch_size, t.local_batch_size, data);
    const int64_t reductions = reduces_each_microbatch(zero.stage, zero.reshard) ? microbatches : 1;
    const int64_t gathers = num_gathers(zero.stage, zero.reshard, microbatches);
    const auto busiest = [&](CollectiveKind kind, int among, int64_t elements) {
      return max_elements_sent(kind, among, std::array{elements});
    };
    return reductions * busiest(CollectiveKind::reduce_scatter, shards, parameters) * master +
           gathers * busiest(CollectiveKind::all_gather, shards, parameters) * element +
           busiest(CollectiveKind::all_reduce, zero.copies, parameters / shards) * master;
  }
  // Returns the bytes kept for backward by a rank that holds `tokens` tokens at their full width.
  int64_t kept(int64_t tokens, const SequenceMemory& attention) const {
    const int64_t row = tokens * element;
    return block_bytes(block,
                       {.stream = row * a.hidden_size,
                        .row = row,
                        .all_tokens_statistic = tokens * master,
                        .shard_statistic = tokens * master,
                        .attention = attention.saved_bytes},
                       recomputed);
  }
  // Returns the number of kept tensors of the residual stream's size: the block's input, the sum after attention and
  // the outputs of the two norms, without those that are recomputed.
  int64_t kept_streams() const {
    int64_t count = 0;
    for (size_t i = 0; i < block.size(); ++i) {
      const bool again = std::ranges::any_of(
          recomputed, [&](const RecomputedRange& range) { return range.contains(i) && range.begin < i; });
      if (block[i].operation.reads_stream() && !again) ++count;
    }
    return count;
  }
  int64_t largest_microbatch(int data) const {
    const auto& t = plan.config.training;
    int64_t largest = 0;
    for (const Range& m : make_data_shard(t.global_batch_size, t.local_batch_size, data, 0).microbatches)
      largest = std::max(largest, m.size());
    return largest;
  }

  const Plan& plan;
  const Architecture& a;
  int ranks, element = 4, master = 4;
  std::vector<ColumnOperation> block;
  std::vector<RecomputedRange> recomputed;  // of a block that recomputes
  std::vector<Operation> repeated;
  bool repeats_attention = false;
  int64_t parameters = 0;       // elements
  int64_t optimizer_state = 0;  // bytes
  int64_t step_row = 0;    // elements of the residual stream for the global batch
};

ZeroSettings zero_of(const Plan& plan) {
  return {plan.config.parallelism.zero_stage, plan.reshard(), plan.mesh.axis_size(kReplica)};
}

std::string cut_name(const SequencePlan& cut, int data) {
  std::string text = data > 1 ? fmt::format("data {}", data) : "";
  if (cut.ulysses * cut.ring == 1) return text;
  if (!text.empty()) text += ", ";
  if (cut.ring == 1) return text + fmt::format("ulysses {}", cut.ulysses);
  if (cut.ulysses > 1) text += fmt::format("ulysses {} x ", cut.ulysses);
  const bool self_attention = cut.method == SequenceMethod::ring_self_attention;
  return text + fmt::format("ring {}{}{}", cut.ring, self_attention ? ", self-attention" : "",
                            cut.window > 0 ? fmt::format(" in windows of {}", cut.window) : "");
}

void set_not_comparable(LayerChoice& choice, std::string remark) {
  choice.is_comparable = false;
  choice.remark = std::move(remark);
}

LayerChoice cut_choice(const Layer& layer, const SequencePlan& cut, int data) {
  LayerChoice choice{.name = cut_name(cut, data), .sequence = cut, .data = data};
  ZeroSettings zero = zero_of(layer.plan);
  if (data % zero.copies != 0) zero.copies = 1;
  choice.name += zero.name();
  const auto& t = layer.plan.config.training;
  choice.parameter_bytes = layer.parameter_bytes(zero, data);
  choice.state_bytes = layer.state(zero);
  const auto sizes = microbatch_sizes(make_data_shard(t.global_batch_size, t.local_batch_size, data, 0));
  const int64_t largest = layer.largest_microbatch(data);
  for (int u = 0; u < cut.ulysses; ++u) {
    for (int r = 0; r < cut.ring; ++r) {
      int64_t by_ulysses = 0, by_ring = 0;
      for (const auto& [sequences, microbatches] : sizes) {
        const SequenceTraffic traffic = sequence_traffic(cut, attention_of(layer.plan, sequences), u, r);
        const auto add = [&](const std::vector<Messages>& all, int64_t times) {
          for (const auto& messages : all)
            (messages.axis == kRing ? by_ring : by_ulysses) += messages.bytes * microbatches * times;
        };
        add(traffic.forward, layer.repeats_attention ? 2 : 1);
        add(traffic.backward, 1);
      }
      choice.ulysses_bytes = std::max(choice.ulysses_bytes, by_ulysses);
      choice.ring_bytes = std::max(choice.ring_bytes, by_ring);
      choice.activation_bytes = std::max(choice.activation_bytes, by_ulysses + by_ring);
      const auto held = num_held_positions(cut.placement, t.seq_len, cut.ulysses, u, cut.ring, r);
      choice.saved_bytes =
          std::max(choice.saved_bytes,
                   layer.kept(largest * held, sequence_memory(cut, attention_of(layer.plan, largest), u, r)));
    }
  }
  if (t.global_batch_size < data) set_not_comparable(choice, fmt::format("needs {} sequences a step", data));
  return choice;
}

// Returns every ulysses x ring of `ranks`. A second entry with ring self-attention follows if there is a ring and the
// elements of its score rows are below kMostElements.
std::vector<SequencePlan> cuts_of(const Plan& plan, int ranks) {
  const SequenceAttention largest_attention = attention_of(plan, plan.config.training.local_batch_size);
  std::vector<SequencePlan> cuts;
  const SequencePlan& own = plan.sequence;
  const auto& a = plan.architecture;
  for (int ulysses = ranks; ulysses >= 1; --ulysses) {
    if (ranks % ulysses != 0 || ulysses > a.num_attention_heads) continue;
    SequencePlan cut{.ulysses = ulysses, .ring = ranks / ulysses};
    cut.placement = cut.ring == 1  ? SequencePlacement::contiguous
                    : own.ring > 1 ? own.placement
                    : a.causal()     ? SequencePlacement::zigzag
                                   : SequencePlacement::contiguous;
    if (pieces(cut.placement, cut.ulysses, cut.ring) > plan.config.training.seq_len) continue;
    cuts.push_back(cut);
    if (cut.ring == 1) continue;
    cut.method = SequenceMethod::ring_self_attention;
    if (max_saved_score_elements(cut, largest_attention) < kMostElements) cuts.push_back(cut);
  }
  return cuts;
}

// Adds data parallelism over all ranks with the other stages of ZeRO: Rajbhandari et al. 2020 (arXiv 1910.02054),
// section 7.
void add_zero(const Layer& layer, const LayerChoice& data, std::vector<LayerChoice>& choices) {
  const std::string own = zero_of(layer.plan).name();
  using enum Reshard;
  for (const ZeroSettings& zero : {ZeroSettings{0}, {1}, {2}, {3, step}, {3, never}, {3, microbatch}}) {
    if (zero.name() == own) continue;
    LayerChoice choice = data;
    choice.name = fmt::format("data {}{}", layer.ranks, zero.name());
    choice.parameter_bytes = layer.parameter_bytes(zero, layer.ranks);
    choice.state_bytes = layer.state(zero);
    choice.chosen = false;
    choices.push_back(choice);
  }
}

// Returns the setting that makes a full plan of a row (such plans have tables of their own), or why it is illegal.
std::string planned_by(const Layer& layer, const std::string& key, bool cut_sequence = true) {
  Config other = layer.plan.config;
  other.parallelism = {};
  other.parallelism.tensor_parallel_sequence = cut_sequence;
  (key == "tensor_parallel_degree" ? other.parallelism.tensor_parallel_degree
                                   : other.parallelism.pipeline_parallel_degree) = layer.ranks;
  try {
    require_countable(other, layer.a, layer.ranks);
    make_plan(other, layer.plan.facts);
  } catch (const ConfigError& error) {
    return std::string("refused: ") + error.what();
  }
  return fmt::format("parallelism.{} = {} plans it{}", key, layer.ranks,
                     cut_sequence ? "" : ", with tensor_parallel_sequence = false");
}

// Adds three rows; recomputation repeats the communication of its products:
//   tensor             heads and MLP are sharded as in Megatron-LM: 4 all-reduces of the residual stream per layer,
//                      2 forward and 2 backward
//   tensor + sequence  4 reduce-scatters and 4 all-gathers instead, and 2 all-gathers more because the inputs of
//                      products are kept in shards (Korthikanti et al. 2022, arXiv 2205.05198, section 4.2)
//   pipeline           per microbatch a rank sends one residual stream forward and one backward, for all its layers;
//                      with 1F1B it keeps at most n microbatches of 1/n of the layers, for n ranks
void add_tensor_and_pipeline(const Layer& layer, std::vector<LayerChoice>& choices) {
  const int n = layer.ranks;
  const auto& t = layer.plan.config.training;
  const int64_t tokens = layer.largest_microbatch(1) * t.seq_len;
  const SequenceMemory attention = sequence_memory({}, attention_of(layer.plan, layer.largest_microbatch(1)), 0, 0);
  const int64_t kept = layer.kept(tokens, attention);
  // Tensors that are not sharded by heads.
  const int64_t streams = layer.kept_streams() * tokens * layer.a.hidden_size * layer.element;
  const std::vector<LinearShape> again = linear_shapes(layer.repeated);
  const int64_t reductions = std::ranges::count(again, true, &LinearShape::to_stream);
  const int64_t reduced = layer.sent(CollectiveKind::all_reduce, layer.step_row) * layer.element;
  const int64_t gathered = layer.sent(CollectiveKind::all_gather, layer.step_row) * layer.element;
  LayerChoice tensor{.name = fmt::format("tensor {}", n),
                     .data = 0,
                     .activation_bytes = (4 + reductions) * reduced,
                     .state_bytes = layer.state() / n,
                     .saved_bytes = streams + (kept - streams) / n};
  set_not_comparable(tensor, planned_by(layer, "tensor_parallel_degree", false));
  LayerChoice sequence = tensor;
  sequence.name = fmt::format("tensor {} + sequence", n);
  sequence.activation_bytes = (10 + std::ssize(again)) * gathered;
  sequence.saved_bytes = kept / n;
  set_not_comparable(sequence, planned_by(layer, "tensor_parallel_degree"));
  const int live = std::min(n, num_microbatches(t.global_batch_size, t.local_batch_size, 1));
  LayerChoice pipeline{.name = fmt::format("pipeline {}", n),
                       .data = 0,
                       .activation_bytes = 2 * layer.step_row * layer.element / layer.a.num_hidden_layers,
                       .state_bytes = layer.state() / n,
                       .saved_bytes = kept * live / n};
  set_not_comparable(pipeline, planned_by(layer, "pipeline_parallel_degree"));
  choices.insert(choices.end(), {tensor, sequence, pipeline});
}

template <class Key>
const LayerChoice& least(const std::vector<LayerChoice>& choices, Key key) {
  return *std::min_element(choices.begin(), choices.end(), [&](const LayerChoice& a, const LayerChoice& b) {
    return std::tuple(!a.is_comparable, key(a)) < std::tuple(!b.is_comparable, key(b));
  });
}

}  // namespace

std::vector<LayerChoice> layer_choices(const Plan& plan) {
  if (plan.tensor.ranks() > 1 || plan.schedule.rows.size() > 1) return {};
  std::vector<LayerChoice> choices;
  const Layer layer(plan);
  if (layer.ranks == 1 || plan.sequence.method == SequenceMethod::linformer) return choices;
  const SequencePlan& own = plan.sequence;
  const int cut_ranks = own.ulysses * own.ring, data = data_ranks(plan.mesh);
  choices.push_back(cut_choice(layer, {.placement = SequencePlacement::contiguous}, layer.ranks));
  choices.back().chosen = cut_ranks == 1;
  const LayerChoice whole = choices.back();
  for (const SequencePlan& cut : cuts_of(plan, cut_ranks > 1 ? cut_ranks : layer.ranks)) {
    const bool same = cut_ranks > 1 && cut.ulysses == own.ulysses && cut.method == own.method;
    choices.push_back(cut_choice(layer, same ? own : cut, cut_ranks > 1 ? data : 1));
    choices.back().chosen = same;
  }
  add_zero(layer, whole, choices);
  add_tensor_and_pipeline(layer, choices);
  if (plan.facts.links.known()) {
    for (LayerChoice& choice : choices) choice.seconds = attention_seconds(plan, choice, plan.facts.links);
  }
  return choices;
}

const LayerChoice& sends_least(const std::vector<LayerChoice>& choices) {
  return least(choices, [](const LayerChoice& c) { return std::tuple(c.sent_bytes(), c.saved_bytes); });
}
const LayerChoice& holds_least(const std::vector<LayerChoice>& choices) {
  return least(choices, [](const LayerChoice& c) { return std::tuple(c.saved_bytes + c.state_bytes, c.sent_bytes()); });
}

const LayerChoice& fastest(const std::vector<LayerChoice>& choices) {
  constexpr double kAlike = 1.05;
  const double limit =
      kAlike * least(choices, [](const LayerChoice& c) { return std::tuple(c.seconds, c.sent_bytes()); }).seconds;
  return least(choices, [&](const LayerChoice& c) {
    return std::tuple(c.seconds <= limit ? 0.0 : c.seconds, c.sent_bytes());
  });
}

std::string explain_layer_choices(const Plan& plan) {
  if (plan.tensor.ranks() > 1 || plan.schedule.rows.size() > 1) return "";  // these plans have tables of their own
  const auto choices = layer_choices(plan);
  if (choices.empty() && plan.mesh.size() > 1) {
    return "  not compared: Linformer computes another function than full attention, so the layouts of full attention "
           "are no alternatives\n";
  }
  if (choices.empty()) return "";
  const LayerChoice &light = sends_least(choices), &small = holds_least(choices);
  const bool timed = plan.facts.links.known();
  const auto bytes = [](int64_t count) { return format_bytes(static_cast<double>(count)); };
  std::vector<std::vector<std::string>> rows = {
      {"layout", "parameters sent", "activations sent", "state held", "activations kept"}};
  if (timed) rows[0].push_back("attention");
  rows[0].push_back("");
  for (const LayerChoice& choice : choices) {
    std::vector<std::string> remarks;
    if (choice.chosen) remarks.push_back("as planned");
    if (&choice == &light) remarks.push_back("sends least");
    if (&choice == &small) remarks.push_back("holds least");
    if (timed && &choice == &fastest(choices)) remarks.push_back("fastest");
    if (!choice.remark.empty()) remarks.push_back(choice.remark);
    rows.push_back({choice.name, bytes(choice.parameter_bytes), bytes(choice.activation_bytes),
                    bytes(choice.state_bytes), bytes(choice.saved_bytes)});
    if (timed)
      rows.back().push_back(choice.shards_batch_or_sequences() ? fmt::format("{:.3g} ms", 1e3 * choice.seconds) : "-");
    rows.back().push_back(join(remarks, ", "));
  }
  std::string text = text_table(rows);
  if (timed) {
    text += fmt::format(
        "  fastest attention: {}. The estimate is the time of the all-to-alls plus the longer of computation and "
        "ring.\n",
        fastest(choices).name);
  }
  const std::string held = bytes(small.state_bytes + small.saved_bytes);
  if (&light == &small) {
    return text + fmt::format("  recommended: {}. It sends the fewest bytes and holds the fewest ({} a layer).\n",
                              light.name, held);
  }
  return text + fmt::format(
                    "  recommended: {}, which sends the fewest bytes ({} a layer), if {} a layer fit a rank.\n"
                    "  Otherwise: {}, which holds {} a layer.\n",
                    light.name, bytes(light.sent_bytes()), bytes(light.state_bytes + light.saved_bytes), small.name,
                    held);
}

}  // namespace orthant
