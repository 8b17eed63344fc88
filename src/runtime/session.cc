#include "runtime/session.h"

#include "base/clock.h"
#include "base/errors.h"
#include "comm/redistribute.h"
#include "model/lr_schedule.h"
#include "parallel/sequence/run.h"
#include "parallel/tensor/run.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace orthant {
namespace {

std::vector<int> uses_of(const Transformer& model, const Weights& weights) {
  std::vector<int> uses;
  for (const Weight& weight : weights.all()) uses.push_back(model.uses(weight));
  return uses;
}

at::Tensor tensor_of(const std::vector<int64_t>& values, at::IntArrayRef shape) {
  at::Tensor t = at::empty(shape, at::kLong);
  std::copy(values.begin(), values.end(), t.mutable_data_ptr<int64_t>());
  return t;
}

Transformer::Options model_options(const Config& config, Mutation mutation) {
  const bool plain = mutation == Mutation::plain_loss;
  return {.recompute = config.activation_checkpoint.mode == "full",
          .seed = static_cast<uint64_t>(config.training.seed),
          .label_smoothing = plain ? 0 : config.training.label_smoothing,
          .z_loss = plain ? 0 : config.training.z_loss};
}
Architecture spoiled(Architecture architecture, Mutation mutation) {
  if (mutation == Mutation::plain_loss) architecture.final_logit_softcapping = 0;
  return architecture;
}

// Which share of the batch a rank reads. The mutation makes the second rank read the first one's.
DataShare share_of(const Plan& plan, const Comm& comm, Mutation mutation) {
  const int index = plan.share_index(comm.rank());
  return plan.shares[static_cast<size_t>(mutation == Mutation::wrong_shard && index == 1 ? 0 : index)];
}

// Whose part of the weights a rank holds. The mutation takes its row for its column, and its column for its row.
int holder(const Plan& plan, int rank, Mutation mutation) {
  if (mutation != Mutation::swapped_groups) return rank;
  const int row = plan.mesh.coord(rank, kRow), column = plan.mesh.coord(rank, kColumn);
  return plan.mesh.rank_at(plan.mesh.rank_at(rank, kRow, column), kColumn, row);
}

std::vector<GradientBucket> buckets_of(const Plan& plan, int rank, Mutation mutation) {
  std::vector<GradientBucket> buckets = plan.buckets_of(rank);
  if (mutation != Mutation::dropped_depth) return buckets;
  for (GradientBucket& bucket : buckets) std::erase(bucket.axes, kDepth);
  return buckets;
}

// The mutation takes the rank's rows of the vocabulary for those one further on.
ModelPipeline spoiled(ModelPipeline pipeline, Mutation mutation) {
  Range& rows = pipeline.vocabulary.slice.rows;
  if (mutation == Mutation::shifted_rows) rows = {rows.begin + 1, rows.end + 1};
  return pipeline;
}

// The mutation adds a bias once for each column to what they sum.
Primitives spoiled(Primitives primitives, const Plan& plan, Mutation mutation) {
  if (mutation != Mutation::bias_of_every_column) return primitives;
  primitives.linear = [&plan, linear = std::move(primitives.linear)](const at::Tensor& x, const Weight& weight) {
    const at::Tensor y = linear(x, weight);
    const size_t first = weight.owner->flat().members[static_cast<size_t>(weight.index)].first;
    if (weight.bias == nullptr || plan.parameters[first].role != ParameterRole::to_stream) return y;
    return y + weight.bias->value.detach() * (plan.tensor.columns - 1);
  };
  return primitives;
}

}  // namespace

ModelPipeline pipeline_of(const Plan& plan, int rank) {
  return {.stages = plan.stages,
          .buckets = plan.buckets_by_stage(),
          .stream_shape = [&plan, rank](int64_t sequences) { return plan.stream_shape(rank, sequences); },
          .vocabulary = {.algorithm = plan.vocabulary,
                         .slice = {.rows = plan.vocabulary_rows(rank), .vocabulary = plan.architecture.vocab_size},
                         .first = plan.stages.front().owner,
                         .last = plan.stages.back().owner,
                         .tensor = plan.tensor,
                         .width = plan.architecture.hidden_size}};
}

std::vector<int64_t> microbatch_sequences(const DataShare& share) {
  std::vector<int64_t> sequences;
  for (const Range& range : share.microbatches) sequences.push_back(range.size());
  return sequences;
}

at::ScalarType scalar_type(const std::string& dtype) {
  return dtype == "bfloat16" ? at::kBFloat16 : dtype == "float64" ? at::kDouble : at::kFloat;
}

Microbatch to_microbatch(const Batch& batch) {
  std::vector<int64_t> places(static_cast<size_t>(batch.seq_len));
  std::iota(places.begin(), places.end(), 0);
  return to_microbatch(batch, places, false);
}

Microbatch to_microbatch(const Batch& batch, const std::vector<int64_t>& places, bool mask_documents) {
  Microbatch microbatch;
  const int64_t B = batch.sequences, T = batch.seq_len;
  const auto held = static_cast<int64_t>(places.size());
  microbatch.places_T = tensor_of(places, {held});
  const auto here = [&](const at::Tensor& all_BT) {
    return held == T ? all_BT : all_BT.index_select(1, microbatch.places_T);
  };
  microbatch.tokens_BT = here(tensor_of(batch.tokens, {B, T}));
  microbatch.labels_BT = here(tensor_of(batch.labels, {B, T}));
  microbatch.sequence_length = T;
  microbatch.samples_B = tensor_of(batch.sample_ids, {B});
  microbatch.positions_BT = microbatch.places_T.unsqueeze(0).expand({B, held}).contiguous();
  if (!mask_documents && batch.lengths.empty()) return microbatch;
  auto packing = std::make_shared<Packing>(Packing{.document_starts = {}, .lengths = batch.lengths});
  if (mask_documents) packing->document_starts = batch.document_starts;
  microbatch.packing = std::move(packing);
  if (!mask_documents) return microbatch;
  auto* position = microbatch.positions_BT.mutable_data_ptr<int64_t>();
  for (const auto& starts : batch.document_starts) {
    for (const int64_t place : places)
      *position++ = place - *(std::upper_bound(starts.begin(), starts.end(), place) - 1);
  }
  return microbatch;
}

Primitives primitives_of(const Plan& plan, Comm& comm) { return primitives_of(plan, plan.tensor, comm); }

Primitives primitives_of(const Plan& plan, const TensorPlan& tensor, Comm& comm) {
  auto core = std::make_shared<AttentionCore>(sequence_attention(comm, plan.sequence));
  if (tensor.rows * tensor.columns == 1) return fused_primitives(std::move(core));
  std::vector<TensorWeight> wholes;
  for (const auto& [first, end] : flat_layout(plan.parameters).members) {
    TensorWeight& weight = wholes.emplace_back();
    const auto& shape = plan.parameters[first].shape;
    for (size_t i = first; i < end; ++i) weight.out += plan.parameters[i].shape[0];
    weight.in = shape.size() > 1 ? shape[1] : 1;
    if (plan.parameters[first].role == ParameterRole::to_stream)
      weight.stays = stationary_of(tensor, {.in = weight.in, .out = weight.out, .to_stream = true});
  }
  return tensor_primitives(comm, tensor, std::move(wholes), plan.architecture.hidden_size, std::move(core));
}

Session::Session(const Plan& plan, const Loader& train, Comm& comm, Mutation mutation)
    : plan_(plan),
      train_(train),
      comm_(comm),
      mutation_(mutation),
      share_(share_of(plan, comm, mutation)),
      places_(plan.places(comm.rank())),
      norm_slots_(norm_slots(plan)),
      weights_(plan.parameters_of(holder(plan, comm.rank(), mutation)), scalar_type(plan.config.training.dtype)),
      model_(spoiled(plan.architecture, mutation), weights_, spoiled(primitives_of(plan, comm), plan, mutation),
             model_options(plan.config, mutation)),
      optimizer_(weights_, {.beta1 = plan.config.optimizer.beta1,
                            .beta2 = plan.config.optimizer.beta2,
                            .eps = plan.config.optimizer.eps,
                            .weight_decay = plan.config.optimizer.weight_decay}),
      reducer_(comm, weights_.gradients(), buckets_of(plan, comm.rank(), mutation), uses_of(model_, weights_)),
      stages_(spoiled(pipeline_of(plan, comm.rank()), mutation), model_, weights_, reducer_, comm),
      chain_(comm),
      before_(weights_, optimizer_) {
  if (mutation == Mutation::late_messages) stages_.hand_on_late();
  if (mutation == Mutation::dropped_weights) stages_.drop_weights();
  if (mutation == Mutation::dropped_reduction) reducer_.drop(static_cast<int>(plan.buckets.size()) - 1);
}

double learning_rate_of(const Config& c, int64_t step) {
  return LrSchedule{.lr = c.optimizer.lr,
                    .steps = c.training.steps,
                    .warmup_steps = c.lr_scheduler.warmup_steps,
                    .decay_type = c.lr_scheduler.decay_type,
                    .decay_ratio = c.lr_scheduler.decay_ratio,
                    .min_lr_factor = c.lr_scheduler.min_lr_factor}
      .at(step);
}

int64_t Session::labels_of(int64_t step) const {
  return train_.valid_labels(first_sample(step), plan_.config.training.global_batch_size);
}

Microbatch Session::load(int64_t step, int microbatch, int64_t labels) const {
  const Range range = share_.microbatches[static_cast<size_t>(microbatch)];
  Microbatch batch = to_microbatch(train_.batch(first_sample(step) + range.begin, range.size()), places_,
                                   plan_.config.data.mask_documents);
  if (mutation_ == Mutation::local_numbers) batch.samples_B.sub_(first_sample(step) + share_.sequences.begin);
  if (mutation_ == Mutation::local_positions) batch.positions_BT.copy_(at::arange(batch.positions_BT.size(1)));
  batch.loss_scale = 1.0 / static_cast<double>(std::max<int64_t>(1, labels));
  batch.step = step;
  return batch;
}

StepResult Session::gradients(int64_t step, const Signals& signals) {
  const at::Tensor numbers = numbers_of(signals);
  StepResult result = carry_out(step, numbers, {});
  finish_gradients(numbers);
  sum(numbers, true);
  read(numbers, result);
  return result;
}

at::Tensor Session::numbers_of(const Signals& signals) const {
  int64_t count = StepSignals::elements(comm_.mesh().size());
  for (const NormSlots& slots : norm_slots_) count += static_cast<int64_t>(slots.parameters.size());
  const at::Tensor numbers = at::zeros({count}, at::kDouble);
  double* slots = numbers.mutable_data_ptr<double>();
  slots[StepSignals::kTerminate] = signals.terminate ? 1 : 0;
  slots[StepSignals::kInterrupt] = signals.interrupt ? 1 : 0;
  slots[StepSignals::kFirstPeakBytes + comm_.rank()] = signals.peak_memory_bytes;
  return numbers;
}

StepResult Session::carry_out(int64_t step, const at::Tensor& numbers, StepInput input) {
  StepResult result{.step = step, .valid_labels = labels_of(step)};
  result.tokens = train_.present_tokens(first_sample(step), plan_.config.training.global_batch_size);
  const auto& row = plan_.row(comm_.rank());
  input.sequences = microbatch_sequences(share_);
  input.load = [&](int microbatch) {
    const auto start = Clock::now();
    Microbatch batch = load(step, microbatch, result.valid_labels);
    result.data_seconds += seconds_since(start);
    return batch;
  };
  input.announce = announcing(row.size(), fmt::format("of step {}", step));
  input.loss = [&](double sum) {
    numbers.mutable_data_ptr<double>()[StepSignals::kLoss] = counts_tokens() ? sum : 0;
  };
  stages_.run(row, input);
  periods_ = stages_.periods();
  return result;
}

void Session::finish_gradients(const at::Tensor& numbers) {
  sum_copies();
  spoil_gradients();
  double* square = numbers.mutable_data_ptr<double>() + StepSignals::elements(comm_.mesh().size());
  for (const NormSlots& slots : norm_slots_)
    for (const size_t parameter : slots.parameters) *square++ = gradient_squares(weights_, parameter);
}

void Session::sum(const at::Tensor& numbers, bool along_pipeline) {
  int64_t begin = 0;
  const auto sum = [&](int64_t count, Axes axes) {
    if (!along_pipeline) std::erase(axes, "pipeline");
    if (comm_.group_size(axes) > 1) comm_.all_reduce(numbers.narrow(0, begin, count), axes).wait();
    begin += count;
  };
  sum(StepSignals::elements(comm_.mesh().size()), all_axes(comm_.mesh()));
  for (const NormSlots& slots : norm_slots_) sum(static_cast<int64_t>(slots.parameters.size()), slots.axes);
}

void Session::read(const at::Tensor& numbers, StepResult& result) const {
  const int ranks = comm_.mesh().size();
  const double* slots = numbers.const_data_ptr<double>();
  const double* squares = slots + StepSignals::elements(ranks);
  result.loss = slots[StepSignals::kLoss];
  result.terminate = slots[StepSignals::kTerminate] > 0;
  result.interrupt = slots[StepSignals::kInterrupt] > 0;
  result.peak_memory_bytes = *std::max_element(slots + StepSignals::kFirstPeakBytes, squares);
  result.norm = std::sqrt(std::accumulate(squares, slots + numbers.numel(), 0.0));
}

std::function<void(const Action&, size_t)> Session::announcing(size_t actions, std::string what) const {
  return [this, actions, what = std::move(what)](const Action& action, size_t index) {
    comm_.set_activity(fmt::format("{}, action {} of {} {}", to_string(action), index + 1, actions, what));
  };
}

void Session::spoil_gradients() {
  if (mutation_ == Mutation::stray_mean) weights_.gradients().div_(comm_.group_size(plan_.gradient_axes));
  for (size_t p = 0; p < plan_.parameters.size() && mutation_ == Mutation::bias_summed_twice; ++p) {
    const ParameterInfo& parameter = plan_.parameters[p];
    const auto& summed = plan_.groups[static_cast<size_t>(parameter.group)].reduced;
    if (parameter.is_bias()) weights_.gradient(p).mul_(comm_.group_size(summed));
  }
  if (mutation_ != Mutation::mean_over_rows) return;
  for (size_t group = 0; group < plan_.groups.size(); ++group) {
    const auto& split = plan_.groups[group].split;
    if (std::ranges::find(split, kRow) == split.end()) continue;
    const auto [begin, end] = weights_.flat().groups[group];
    weights_.gradients().narrow(0, begin, end - begin).div_(plan_.tensor.rows);
  }
}

// Each of two stages has a part of the gradient; both may be on one rank.
void Session::sum_copies() {
  for (const auto& [original, copy] : plan_.copies()) {
    const int here = plan_.pipeline_rank(comm_.rank()), one = plan_.owner_of(original), other = plan_.owner_of(copy);
    if (here != one && here != other) continue;
    const at::Tensor own = weights_.gradient(here == one ? original : copy);
    if (one == other) {
      weights_.gradient(copy).copy_(own.add_(weights_.gradient(copy)));
      continue;
    }
    const at::Tensor added = at::empty_like(own);
    const int peer = here == one ? other : one;
    const std::array<Transfer, 2> both{{{own, peer, false, 0}, {added, peer, true, 0}}};
    comm_.exchange(both, {"pipeline"}).wait();
    own.add_(added);
  }
}

at::Tensor Session::gather(const at::Tensor& part, size_t parameter) const {
  const at::NoGradGuard no_grad;
  const ParameterInfo& info = plan_.parameters[parameter];
  const Layout& layout = plan_.layouts[parameter];
  bool holds = plan_.holds(comm_.rank(), parameter);
  bool alone = true;  // at the beginning of all axes but the pipeline's
  for (const Axis& axis : comm_.mesh().axes) {
    if (axis.name == "pipeline" || comm_.mesh().coord(comm_.rank(), axis.name) == 0) continue;
    alone = false;
    holds &= placement(layout, axis.name).what == Placing::S;
  }
  const bool sliced = placement(layout, "pipeline").what == Placing::S;
  Layout here = whole(static_cast<int>(info.shape.size()));
  if (sliced) here.split[0] = {"pipeline"};  // rows of a vocabulary
  at::Tensor all;
  if (holds) all = redistribute(comm_, part, layout, here, info.shape);
  if (sliced) return alone ? with_other_slices(all, info.shape) : at::Tensor();
  const int owner = plan_.owner_of(parameter);
  if (alone && owner != 0 && !plan_.on_every_stage(parameter)) {
    if (speaks()) all = at::empty(info.shape, part.options());
    if (speaks()) comm_.recv(all, {"pipeline"}, owner).wait();
    if (holds) comm_.send(all, {"pipeline"}, 0).wait();
  }
  return speaks() ? all : at::Tensor();
}

// On rank 0 all rows, from pipeline ranks that have some each; elsewhere nothing.
at::Tensor Session::with_other_slices(const at::Tensor& rows, at::IntArrayRef shape) const {
  if (!speaks()) {
    if (rows.numel() > 0) comm_.send(rows, {"pipeline"}, 0).wait();
    return {};
  }
  const at::Tensor all = at::empty(shape, rows.options());
  all.narrow(0, 0, rows.size(0)).copy_(rows);
  const int ranks = comm_.mesh().axis_size("pipeline");
  for (int rank = 1; rank < ranks; ++rank) {
    const Range slice = shard(shape[0], ranks, rank);
    at::Tensor some = all.narrow(0, slice.begin, slice.size());
    if (some.numel() > 0) comm_.recv(some, {"pipeline"}, rank).wait();
  }
  return all;
}

int64_t Session::heard(int64_t number) const {
  const at::Tensor told = at::full({1}, number, at::kLong);
  comm_.broadcast(told, all_axes(comm_.mesh())).wait();
  return told.item<int64_t>();
}

void Session::update(int64_t step, const StepResult& result) {
  optimizer_.step(step, learning_rate_of(plan_.config, step), clip_factor(result.norm, plan_.config.training.max_norm));
}

}  // namespace orthant
