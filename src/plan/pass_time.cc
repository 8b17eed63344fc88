#include "plan/pass_time.h"

#include <algorithm>

#include "base/errors.h"
#include "config/from_config.h"
#include "model/recompute_plan.h"
#include "parallel/sequence/scores_plan.h"
#include "parallel/sequence/ulysses/heads_plan.h"
#include "parallel/vocabulary/layers_plan.h"
#include "plan/collective_time.h"
#include "plan/vocabulary.h"

namespace orthant {
namespace {

// Messages between two neighbors have no kind of their own: they take the time of one shift.
CollectiveKind kind_of(const Messages& messages) {
  const bool between_two = messages.collective == "send" || messages.collective == "exchange";
  return between_two ? CollectiveKind::shift : collective_named(messages.collective);
}

// Products move their operands over columns while they compute, panel by panel. All other messages are waited for.
bool moves_in_panels(const Messages& messages) { return messages.what == "activations" || messages.what == "products"; }

// Weights travel over rows while the activations that they are multiplied with travel over columns.
bool travels_with_others(const Messages& messages) { return messages.what == "weights"; }

}  // namespace

double TimeParts::seconds() const {
  double sum = products + attention + kernels;
  for (const auto& [axis, seconds] : communication) sum += seconds;
  return sum;
}

TimeParts& TimeParts::add(const TimeParts& other, double times) {
  products += times * other.products;
  attention += times * other.attention;
  kernels += times * other.kernels;
  for (const auto& [axis, seconds] : other.communication) communication[axis] += times * seconds;
  return *this;
}

PassTimer::PassTimer(const Sharding& sharding, int64_t sequences)
    : sharding_(sharding),
      hardware_(*sharding.facts.hardware),
      rank_(0),
      sequences_(sequences),
      shape_(tensor_shape_of(sharding, rank_, sequences)),
      traffic_(tensor_traffic(sharding.tensor, shape_, sharding.mesh, rank_)),
      tokens_(shape_.sequences * shape_.tokens) {
  time_blocks();
}

double PassTimer::product(ProductKind kind, int64_t m, int64_t k, int64_t n) const {
  if (std::min({m, k, n}) == 0) return 0;
  const bool to_float32 = shape_.sum_bytes > shape_.element_bytes;
  if (kind == ProductKind::weight_gradient && to_float32) kind = ProductKind::weight_gradient_float32;
  const std::string& dtype = sharding_.config.training.dtype;
  return product_seconds(hardware_, kind, m, k, n, dtype) / hardware_.step.share_of(dtype);
}

double PassTimer::seconds_of(const Messages& m) const {
  if (sharding_.mesh.axis_size(m.axis) == 1) return 0;
  const Waiting waiting = travels_with_others(m) ? Waiting::during_other_work : Waiting::alone;
  return collective_seconds(sharding_.mesh, hardware_, kind_of(m), {m.axis}, m.calls, m.bytes, waiting) +
         hardware_.step.message_traffic * static_cast<double>(m.bytes.larger()) /
             (hardware_.memory.bytes_per_s * hardware_.memory.share);
}

void PassTimer::add_messages(TimeParts& parts, const std::vector<Messages>& messages,
                             HidingComputation computation) const {
  const bool hides = computation.products > 0 && !hardware_.device.communication_uses_compute;
  for (const Messages& m : messages) {
    double seconds = seconds_of(m);
    if (hides && moves_in_panels(m)) {
      const double first = std::min(1.0, static_cast<double>(computation.products) / static_cast<double>(m.calls));
      const double rest = seconds * (1 - first), hidden = std::min(rest, computation.seconds * (1 - first));
      computation.seconds -= hidden;
      seconds -= hidden;
    }
    parts.communication[m.axis] += seconds;
  }
}

// Ring attention takes the keys of one rank after the other, and adds up the results in float32 or float64. With
// zigzag, queries come from two places, and each place takes a kernel of its own.
void PassTimer::add_attention(PassTimes& times, AttentionSize size) const {
  const SequencePlan& cut = sharding_.sequence;
  const bool by_blocks = cut.ring > 1 && cut.method == SequenceMethod::ring_attention;
  const int64_t blocks = by_blocks ? cut.ring : 1, queries = size.query_tokens;
  const int64_t places = by_blocks && cut.placement == SequencePlacement::zigzag && queries > 1 ? 2 : 1;
  size.key_tokens = std::max<int64_t>(1, size.key_tokens / blocks);
  size.query_tokens = queries / places;
  if (by_blocks) {
    const double sum_bytes = static_cast<double>(sequences_ * size.v_head_dim * std::max(4, shape_.element_bytes));
    const double queries_bytes = sum_bytes * static_cast<double>(queries * size.heads),
                 keys_bytes = sum_bytes * static_cast<double>(size.key_tokens * size.kv_heads);
    const auto sums = static_cast<double>(blocks - 1);
    times.forward.kernels += sums * kernel(3 * queries_bytes);
    times.input.kernels += static_cast<double>(blocks) * kernel(3 * queries_bytes) + 2 * sums * kernel(3 * keys_bytes);
  }
  const std::string& dtype = sharding_.config.training.dtype;
  const double times_each = static_cast<double>(blocks * places) / hardware_.step.share_of(dtype);
  times.forward.attention += times_each * attention_seconds(hardware_, /*backward=*/false, size, dtype);
  times.input.attention += times_each * attention_seconds(hardware_, /*backward=*/true, size, dtype);
}

PassTimes PassTimer::attention_times() const {
  const SequencePlan& cut = sharding_.sequence;
  const Architecture& a = sharding_.architecture;
  const SequenceAttention whole = attention_of(sharding_, sequences_);
  const HeadShard heads = head_shard(whole.heads, whole.key_heads, cut.ulysses, 0);
  const int64_t query_heads = heads.query.size(), key_heads = heads.key.size();
  const int64_t queries = num_ring_positions(cut.placement, whole.seq_len, cut.ring, 0);
  AttentionSize size{.sequences = sequences_,
                     .query_tokens = queries,
                     .key_tokens = whole.seq_len,
                     .heads = query_heads,
                     .kv_heads = key_heads,
                     .qk_head_dim = whole.head_dim,
                     .v_head_dim = whole.head_dim,
                     .visible_share = 1,
                     .stores_scores = a.attn_logit_softcapping > 0};
  PassTimes times;
  if (cut.method == SequenceMethod::linformer && cut.summary_length > 0) {
    size.key_tokens = cut.summary_length;
    const int64_t rows = sequences_ * key_heads * whole.head_dim;
    times.forward.products += 2 * product(ProductKind::forward, rows, queries, size.key_tokens);
    times.input.products += 2 * product(ProductKind::input_gradient, rows, size.key_tokens, queries);
    times.weights.products += 2 * product(ProductKind::weight_gradient, queries, rows, size.key_tokens);
  } else {
    int64_t most = -1;  // pairs of the rank that has most
    for (int r = 0; r < cut.ring; ++r) {
      const int64_t pairs = num_visible_pairs(cut.placement, whole.seq_len, cut.ring, r, a.causal(), a.sliding_window);
      if (pairs <= most) continue;
      most = pairs;
      size.query_tokens = num_ring_positions(cut.placement, whole.seq_len, cut.ring, r);
    }
    size.visible_share = static_cast<double>(most) / static_cast<double>(size.query_tokens * whole.seq_len);
  }
  add_attention(times, size);
  const SequenceTraffic traffic = sequence_traffic(cut, whole, 0, 0);
  // Blocks of a ring travel while the rank computes with the block before. All-to-alls and sums are waited for.
  const auto add = [&](TimeParts& parts, const std::vector<Messages>& messages) {
    for (const Messages& m : messages) {
      double seconds = seconds_of(m);
      const bool travels = m.axis == kRing && cut.method != SequenceMethod::linformer;
      if (travels && !hardware_.device.communication_uses_compute) {
        const double steps = cut.ring;
        seconds = std::max(0.0, seconds - parts.attention * (steps - 1) / steps);
      }
      parts.communication[m.axis] += seconds;
    }
  };
  add(times.forward, traffic.forward);
  add(times.input, traffic.backward);
  return times;
}

PassTimes PassTimer::operation_times(const ColumnOperation& own) const {
  const auto element = static_cast<double>(shape_.element_bytes);
  const double row_in = static_cast<double>(tokens_ * own.in) * element,
               row_out = static_cast<double>(tokens_ * own.out) * element;
  const auto stream = static_cast<double>(sharding_.stream_bytes(rank_, sequences_));
  PassTimes times;
  switch (own.operation.kind) {
    case OperationKind::linear: {
      const bool shards_output =
          own.operation.to_stream && stationary_of(sharding_.tensor, linear_shape(own.operation)) == Stationary::output;
      const int64_t k = shards_output ? own.operation.in : own.in,
                    n = shards_output ? shard(own.product_out, sharding_.tensor.columns, 0).size() : own.product_out;
      times.forward.products = product(ProductKind::forward, tokens_, k, n);
      times.input.products = product(ProductKind::input_gradient, tokens_, n, k);
      times.weights.products = product(ProductKind::weight_gradient, n, tokens_, k);
      break;
    }
    case OperationKind::norm:  // reads two streams, writes their sum and the output
      times.forward.kernels = kernel(4 * stream);
      times.input.kernels = kernel(4 * stream);
      break;
    case OperationKind::local:
      times.forward.kernels = kernel(row_in + row_out);
      times.input.kernels = kernel(2 * row_in + row_out);
      break;
    case OperationKind::attention:
      times = attention_times();
      times.forward.kernels += kernel(2 * row_in);  // rotary positions
      times.input.kernels += kernel(2 * row_in);
      break;
  }
  return times;
}

void PassTimer::time_blocks() {
  std::vector<PassTimes> by_operation;
  for (const ColumnOperation& own : shape_.block) by_operation.push_back(operation_times(own));
  for (const PassTimes& times : by_operation) {
    keeping_.forward.add(times.forward);
    keeping_.input.add(times.input);
    keeping_.weights.add(times.weights);
  }
  TimeParts repeated;
  int64_t products = 0, repeated_products = 0;
  for (const ColumnOperation& own : shape_.block) products += own.operation.kind == OperationKind::linear ? 1 : 0;
  for (const RecomputedRange& range : shape_.recomputed) {
    for (size_t i = range.begin; i < range.last_product(); ++i) {
      repeated.add(by_operation[i].forward);
      repeated_products += shape_.block[i].operation.kind == OperationKind::linear ? 1 : 0;
    }
  }
  add_messages(keeping_.forward, traffic_.block_forward, {keeping_.forward.products, products});
  add_messages(keeping_.input, traffic_.block_backward,
               {keeping_.input.products + keeping_.weights.products, products});
  add_messages(repeated, traffic_.block_repeated, {repeated.products, repeated_products});
  recomputing_ = keeping_;
  recomputing_.input.add(repeated);
}

TimeParts PassTimer::head() const {
  const int64_t m = tokens_, width = sharding_.architecture.hidden_size,
                rows = shard(shape_.vocabulary, sharding_.tensor.columns, 0).size();
  TimeParts parts;
  parts.products = product(ProductKind::forward, m, width, rows) +
                   product(ProductKind::input_gradient, m, rows, width) +
                   product(ProductKind::weight_gradient, rows, m, width);
  // The softmax reads the logits twice and writes their gradients.
  parts.kernels = kernel(3 * static_cast<double>(m * rows * shape_.element_bytes));
  add_messages(parts, traffic_.loss_forward, {parts.products, 1});
  add_messages(parts, traffic_.loss_backward);
  return parts;
}

PassTimes PassTimer::stage(const Stage& stage) const {
  const Recomputation recompute = make_recomputation(sharding_.config);
  const auto layers = static_cast<double>(stage.layers.size());
  const auto recomputing = static_cast<double>(recompute.num_layers(stage.layers.begin, stage.layers.end));
  PassTimes times;
  const auto add = [&](const PassTimes& of_block, double count) {
    times.forward.add(of_block.forward, count);
    times.input.add(of_block.input, count);
    times.weights.add(of_block.weights, count);
  };
  add(keeping_, layers - recomputing);
  add(recomputing_, recomputing);
  const auto stream = static_cast<double>(sharding_.stream_bytes(rank_, sequences_));
  if (stage.last) {  // the last norm
    times.forward.kernels += kernel(4 * stream);
    times.input.kernels += kernel(4 * stream);
  }
  if (stage.first && !sharding_.architecture.rotary()) {  // adds the vectors of positions, and to their gradients
    times.forward.kernels += kernel(3 * stream);
    times.weights.kernels += kernel(3 * stream);
  }
  if (!sharding_.vocabulary.empty()) return times;
  if (stage.first) {
    times.forward.kernels += kernel(2 * stream);
    times.weights.kernels += kernel(3 * stream);
    add_messages(times.forward, traffic_.embedding_forward);
    add_messages(times.weights, traffic_.embedding_backward);
  }
  if (stage.last) times.forward.add(head());
  return times;
}

VocabularyTimes PassTimer::vocabulary() const {
  const VocabularyAlgorithm& algorithm = *algorithm_of(sharding_);
  const OutputLoss loss = make_output_loss(sharding_.config);
  const int64_t m = tokens_, width = sharding_.architecture.hidden_size, rows = sharding_.vocabulary_rows(rank_).size();
  const double logits = static_cast<double>(m * rows * shape_.element_bytes);
  const double each = loss.kept_of_logit();
  VocabularyTimes times;
  const double input = each * product(ProductKind::input_gradient, m, rows, width),
               weight = each * product(ProductKind::weight_gradient, rows, m, width);
  times.logits.products = product(ProductKind::forward, m, width, rows) + (algorithm.early() ? input : 0);
  times.logits.kernels = kernel(2 * logits);
  if (algorithm.rounds() == 2) times.exponentials.kernels = kernel(2 * logits);
  times.gradients.products = weight + (algorithm.early() ? 0 : input);
  times.gradients.kernels = kernel(logits);
  const auto stream = static_cast<double>(sharding_.stream_bytes(rank_, sequences_));
  times.lookup.kernels = kernel(2 * stream);
  times.scatter.kernels = kernel(3 * stream);
  // The software around a collective, in the pass that starts it and in the one that waits for it. Schedules hide the
  // wait, but not this work.
  const double call = software_seconds(hardware_, sharding_.mesh);
  const auto add_calls = [&](TimeParts& parts, int calls) { parts.communication[kPipeline] += calls * call; };
  add_calls(times.logits, algorithm.early() ? 3 : 2);  // inputs, statistics, and the early gradients
  if (algorithm.rounds() == 2) add_calls(times.exponentials, 2);
  add_calls(times.gradients, algorithm.early() ? 1 : 2);
  add_calls(times.lookup, 1);
  add_calls(times.scatter, 1);
  times.barriers = barriers();
  return times;
}

std::map<ActionKind, double> PassTimer::barriers() const {
  using enum ActionKind;
  const VocabularyAlgorithm& algorithm = *algorithm_of(sharding_);
  const VocabularyShape shape{.tokens = tokens_,
                              .stream = volume(sharding_.stream_shape(rank_, sequences_)),
                              .element_bytes = shape_.element_bytes,
                              .ranks = sharding_.mesh.axis_size(kPipeline),
                              .over_nccl = uses_nccl(sharding_.config)};
  std::map<CollectiveKind, double> seconds;  // of one call
  for (const int position : {0, 1}) {        // the root sends less in a sum, and receives more
    for (const Messages& m : output_traffic(algorithm, make_output_loss(sharding_.config), shape, position)) {
      const CollectiveKind kind = kind_of(m);
      const Moved bytes = {m.bytes.sent / m.calls, m.bytes.received / m.calls};
      const double one =
          collective_seconds(sharding_.mesh, hardware_, kind, {kPipeline}, 1, bytes, Waiting::during_other_work);
      seconds[kind] = std::max(seconds[kind], one);
    }
  }
  const double broadcast = seconds[CollectiveKind::broadcast], sum = seconds[root_sum(shape.over_nccl)];
  const double statistics = seconds[CollectiveKind::all_gather];
  return {{S, broadcast},   {Z, statistics}, {T, statistics}, {TW, statistics},
          {B, sum + (algorithm.early() ? statistics : 0)}, {F, sum},        {EB, broadcast}};
}

double PassTimer::message(int from_pipeline_rank, int to_pipeline_rank) const {
  const bool same_host = are_on_same_hosts(sharding_.mesh, hardware_, kPipeline, from_pipeline_rank, to_pipeline_rank);
  return message_seconds(hardware_, same_host, static_cast<double>(sharding_.stream_bytes(rank_, sequences_)));
}

namespace {

double seconds_of_stages(const Sharding& sharding, const std::vector<Stage>& stages, int64_t sequences) {
  const PassTimer timer(sharding, sequences);
  double seconds = 0;
  for (const Stage& stage : stages) {
    const PassTimes times = timer.stage(stage);
    seconds += times.forward.seconds() + times.input.seconds() + times.weights.seconds();
  }
  return seconds;
}

}  // namespace

Durations pass_seconds(const Sharding& sharding, const std::vector<Stage>& stages) {
  using enum ActionKind;
  const DataShard& shard = sharding.data_shards.front();
  int64_t largest = 1;
  for (const Range& microbatch : shard.microbatches) largest = std::max(largest, microbatch.size());
  const PassTimer timer(sharding, largest);
  Durations durations;
  const VocabularyTimes vocabulary = sharding.vocabulary.empty() ? VocabularyTimes() : timer.vocabulary();
  durations.barrier_times = vocabulary.barriers;
  for (size_t s = 0; s < stages.size(); ++s) {
    const PassTimes times = timer.stage(stages[s]);
    durations.stage_times.push_back(
        Durations::of(times.forward.seconds(), times.input.seconds(), times.weights.seconds())
            .with(S, vocabulary.logits.seconds())
            .with(Z, vocabulary.exponentials.seconds())
            .with(T, vocabulary.gradients.seconds())
            .with(TW, vocabulary.gradients.seconds())
            .with(E, vocabulary.lookup.seconds())
            .with(EB, vocabulary.scatter.seconds())
            .times);
    if (s + 1 == stages.size() || stages[s].owner == stages[s + 1].owner) continue;
    const int from = stages[s].owner, to = stages[s + 1].owner;
    durations.link_times[{from, to}] = durations.link_times[{to, from}] = timer.message(from, to);
  }
  // A smaller microbatch takes a larger share of the time than of the sequences.
  std::map<int64_t, double> scales = {{0, 0.0}, {largest, 1.0}};
  for (const Range& microbatch : shard.microbatches) {
    const auto [scale, is_new] = scales.try_emplace(microbatch.size());
    if (is_new) {
      scale->second = seconds_of_stages(sharding, stages, microbatch.size()) /
                      seconds_of_stages(sharding, stages, largest);
    }
    durations.microbatch_scale.push_back(scale->second);
  }
  return durations;
}

}  // namespace orthant
