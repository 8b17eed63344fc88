// Builds one rank's model from the plan, and computes a step: its row, its gradients, and the statistics of all ranks.
#include "runtime/session.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "base/clock.h"
#include "base/errors.h"
#include "comm/redistribute.h"
#include "runtime/gpu_groups.h"

namespace orthant {
namespace {

std::vector<int> uses_of(const Transformer& model, const Weights& weights) {
  std::vector<int> uses;
  for (const Weight& weight : weights.all()) uses.push_back(model.uses(weight));
  return uses;
}

Reduction reduction_of(const SessionParts& parts) {
  return parts.kept.owned ? Reduction::reduce_scatter : Reduction::all_reduce;
}

std::unique_ptr<GradientReducer> reducer_of(const Plan& plan, Comm& comm, Weights& weights, const Transformer& model,
                                            const SessionParts& parts) {
  if (plan.has_gradients_by_unit()) return nullptr;
  return std::make_unique<GradientReducer>(comm, weights.gradients(), parts.buckets, uses_of(model, weights),
                                           reduction_of(parts), plan.copy_axes());
}

std::unique_ptr<ShardedStates> sharded_states_of(const Plan& plan, Comm& comm, Weights& weights,
                                                 const Transformer& model, const SessionParts& parts) {
  if (!plan.has_gradients_by_unit()) return nullptr;
  std::vector<bool> in_unit;
  for (size_t bucket = 0; bucket < parts.buckets.size(); ++bucket) in_unit.push_back(plan.belongs_to_unit(bucket));
  return std::make_unique<ShardedStates>(comm, weights, parts.buckets, std::move(in_unit), uses_of(model, weights),
                                         reduction_of(parts), plan.copy_axes());
}

}  // namespace

Session::Session(const Plan& plan, const Loader& train, Comm& comm)
    : Session(plan, train, comm, session_parts(plan, comm)) {}

Session::Session(const Plan& plan, const Loader& train, Comm& comm, SessionParts parts)
    : plan_(plan),
      train_(train),
      comm_(comm),
      parts_(std::move(parts)),
      counted_in_norm_(plan.counted_in_norm(comm.rank())),
      weights_(parts_.parameters, scalar_type(plan.config.training.dtype), parts_.kept, device_of(plan.config)),
      model_(parts_.architecture, weights_, parts_.primitives, parts_.options),
      optimizer_(weights_, plan.config.optimizer, parts_.orthogonalizer),
      gradient_scale_(at::ones({}, at::TensorOptions(weights_.device()).dtype(at::kDouble))),
      reducer_(reducer_of(plan, comm, weights_, model_, parts_)),
      sharded_(sharded_states_of(plan, comm, weights_, model_, parts_)),
      stages_(parts_.pipeline, model_, weights_, reducer_.get(), sharded_.get(), comm),
      chain_(comm),
      backup_(weights_, optimizer_),
      batches_(train) {
  open_gpu_groups(plan, comm);
  if (plan.config.optimizer.in_backward) {
    sharded_->on_summed = [this](int bucket) { update_in_backward(bucket); };
  }
}

int64_t Session::labels_of(int64_t step) const {
  return train_.valid_labels(first_sample(step), plan_.config.training.global_batch_size);
}

std::vector<SampleRange> Session::samples_of(int64_t step) const {
  std::vector<SampleRange> ranges;
  for (const Range& range : parts_.data_shard.microbatches) {
    ranges.push_back({first_sample(step) + range.begin, range.size()});
  }
  return ranges;
}

void Session::read_ahead(int64_t step) {
  std::vector<SampleRange> ranges = samples_of(step);
  for (const SampleRange& next : samples_of(step + 1)) ranges.push_back(next);
  batches_.expect(ranges);
}

Microbatch Session::load(int64_t step, int microbatch, int64_t labels) {
  Microbatch batch = parts_.to_microbatch(batches_.batch(samples_of(step)[static_cast<size_t>(microbatch)]));
  batch.loss_scale = 1.0 / static_cast<double>(std::max<int64_t>(1, labels));
  batch.step = step;
  return batch;
}

StepResult Session::gradients(int64_t step, const Signals& signals) {
  const at::Tensor statistics = initial_step_statistics(signals);
  StepResult result = carry_out(step, statistics, {});
  finish_gradients(statistics);
  sum(statistics, true);
  read(statistics, result);
  return result;
}

at::Tensor Session::initial_step_statistics(const Signals& signals) const {
  at::Tensor statistics = at::zeros({StepSignals::kElements}, at::kDouble);
  double* slots = statistics.mutable_data_ptr<double>();
  slots[StepSignals::kTerminate] = signals.terminate ? 1 : 0;
  slots[StepSignals::kInterrupt] = signals.interrupt ? 1 : 0;
  slots[StepSignals::kPeakBytes] = signals.peak_memory_bytes;
  return plan_.post_validates() ? statistics : copy_to_device(statistics, weights_.device());
}

StepResult Session::carry_out(int64_t step, const at::Tensor& statistics, StepInput input) {
  step_ = step, squares_ = {}, loss_.reset(), not_finite_ = {};
  StepResult result{.step = step, .valid_labels = labels_of(step)};
  result.tokens = train_.present_tokens(first_sample(step), plan_.config.training.global_batch_size);
  read_ahead(step);
  const auto& row = parts_.row;
  input.sequences = microbatch_sequences(parts_.data_shard);
  input.load = [&](int microbatch) {
    const auto start = Clock::now();
    Microbatch batch = load(step, microbatch, result.valid_labels);
    result.data_seconds += seconds_since(start);
    return batch;
  };
  input.announce = activity_reporter(row.size(), fmt::format("of step {}", step));
  if (reports_loss()) input.loss = [&](const at::Tensor& sum) { loss_ = sum; };
  stages_.run(row, input);
  intervals_ = stages_.intervals();
  write_loss(statistics);
  return result;
}

void Session::write_loss(const at::Tensor& statistics) {
  if (loss_.defined()) statistics.select(0, StepSignals::kLoss).copy_(std::exchange(loss_, {}));
}

void Session::finish_gradients(const at::Tensor& statistics) {
  write_loss(statistics);
  if (sharded_) sharded_->finish();
  add_tied_gradients();
  for (size_t i = 0; i < counted_in_norm_.size() && !plan_.config.optimizer.in_backward; ++i) add_to_norm(i);
  squares_.write_numbers(statistics.narrow(0, StepSignals::kSquares, ExactSum::kNumbers));
}

void Session::add_to_norm(size_t parameter) {
  const Range& counted = counted_in_norm_[parameter];
  add_gradient_squares(weights_, parameter, counted.begin, counted.size(), squares_);
}

void Session::set_clip_scale(double norm) {
  const auto& training = plan_.config.training;
  gradient_scale_.fill_(
      clip_factor(training.clips_by_previous_norm() ? last_norm_.value_or(0) : norm, training.max_norm));
}

void Session::update_in_backward(int bucket) {
  std::vector<size_t> updated;
  for (const int weight : parts_.buckets[static_cast<size_t>(bucket)].weights) {
    const auto [first, end] = weights_.flat().members[static_cast<size_t>(weight)];
    for (size_t parameter = first; parameter < end; ++parameter) {
      add_to_norm(parameter);
      if (!not_finite_ && !all_finite(weights_.owned_gradient(parameter))) not_finite_ = parameter;
      if (before_update) before_update(parameter);
      if (!not_finite_ || optimizer_.is_exchanged(parameter)) updated.push_back(parameter);
    }
  }
  set_clip_scale(0);
  optimizer_.step(updated, step_ - skipped_steps_, learning_rate_of(plan_.config, step_), gradient_scale_);
}

void Session::sum(const at::Tensor& statistics, bool along_pipeline) {
  Axes axes = all_axes(comm_.mesh());
  if (!along_pipeline) std::erase(axes, kPipeline);
  if (comm_.group_size(axes) > 1) comm_.all_reduce_small(statistics, axes, StepSignals::kMaxima).wait();
}

void Session::read(const at::Tensor& statistics, StepResult& result) {
  const at::Tensor host = statistics.cpu();
  const double* numbers = host.const_data_ptr<double>();
  result.loss = numbers[StepSignals::kLoss];
  result.terminate = numbers[StepSignals::kTerminate] > 0;
  result.interrupt = numbers[StepSignals::kInterrupt] > 0;
  result.peak_memory_bytes = numbers[StepSignals::kPeakBytes];
  result.norm = std::sqrt(ExactSum::value_of(numbers + StepSignals::kSquares));
}

std::function<void(const Action&, size_t)> Session::activity_reporter(size_t actions, std::string what) const {
  return [this, actions, what = std::move(what)](const Action& action, size_t index) {
    comm_.set_activity(fmt::format("{}, action {} of {} {}", to_string(action), index + 1, actions, what));
  };
}

// Each of the two stages has a partial sum of the gradient. Both may be on one rank.
void Session::add_tied_gradients() {
  for (const auto& [original, copy] : plan_.tied_pairs()) {
    const int here = plan_.pipeline_rank(comm_.rank()), one = plan_.owner_of(original), other = plan_.owner_of(copy);
    if (here != one && here != other) continue;
    const at::Tensor own = weights_.owned_gradient(here == one ? original : copy);
    if (one == other) {
      const at::Tensor of_copy = weights_.owned_gradient(copy);
      of_copy.copy_(own.add_(of_copy));
      continue;
    }
    const at::Tensor added = at::empty_like(own);
    const int peer = here == one ? other : one;
    const std::array<Transfer, 2> both{{{own, peer, false, 0}, {added, peer, true, 0}}};
    comm_.exchange(both, kOverPipeline).wait();
    own.add_(added);
  }
}

bool Session::must_skip(const StepResult& result) const {
  return must_skip_update(result.loss, result.norm, plan_.config.training.skip_above_norm);
}

void Session::announce_updates() const {
  if (!before_update || plan_.config.optimizer.in_backward) return;
  for (size_t i = 0; i < weights_.parameters().size(); ++i) before_update(i);
}

void Session::update(int64_t step, const StepResult& result) {
  announce_updates();
  if (must_skip(result) && !plan_.config.optimizer.in_backward) {
    ++skipped_steps_;
    return;
  }
  set_clip_scale(result.norm);
  update_weights(step);
  last_norm_ = result.norm;
}

void Session::update_weights(int64_t step) {
  if (!plan_.config.optimizer.in_backward) {
    optimizer_.step(step - skipped_steps_, learning_rate_of(plan_.config, step), gradient_scale_);
  }
  gather_weights();
}

void Session::gather_weights() {
  if (plan_.shards_weights()) return sharded_->gather_resident_weights();
  if (parts_.kept.owned) gather_chunks(comm_, parts_.buckets, weights_.values());
}

at::Tensor Session::gradient_shard(size_t parameter) const {
  return shard_from_owned(weights_.owned_gradient(parameter), parameter);
}

at::Tensor Session::master_shard(size_t parameter) const {
  if (weights_.has_all_masters()) return weights_.master(parameter);
  return shard_from_owned(weights_.owned_master(parameter), parameter);
}

at::Tensor Session::value_shard(size_t parameter) const {
  if (!plan_.shards_weights()) return weights_.value(parameter);
  return shard_from_owned(weights_.owned_value(parameter), parameter);
}

at::Tensor Session::shard_from_owned(const at::Tensor& own, size_t parameter) const {
  const ParameterInfo& info = parts_.parameters[parameter];
  if (!parts_.kept.owned) return own.view(info.shard_shape());
  const at::Tensor whole = at::empty(info.shard_shape(), own.options());
  if (info.shard_size() == 0) return whole;
  const int64_t begin = weights_.flat().parameter_offsets[parameter];
  for (const GradientBucket& bucket : parts_.buckets) {
    if (begin < bucket.elements.begin || begin >= bucket.elements.end) continue;
    std::vector<int64_t> counts;
    for (int position = 0; position < comm_.group_size(bucket.axes); ++position) {
      const Range chunk = bucket.chunk(position);
      const auto inside = [&](int64_t at) { return std::clamp<int64_t>(at - begin, 0, info.shard_size()); };
      counts.push_back(inside(chunk.end) - inside(chunk.begin));
    }
    comm_.all_gather(whole, own, bucket.axes, counts).wait();
    return whole;
  }
  throw LogicError("no bucket holds " + info.name);
}

}  // namespace orthant
