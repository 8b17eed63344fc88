// A training run small enough for tests: a synthetic text, the run file of a tiny LLaMA, and ranks as threads that
// record losses, gradients and weights after each step.
#pragma once

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "advice/advised_plan.h"
#include "base/hash.h"
#include "comm/thread_ranks.h"
#include "runtime/session.h"
#include "runtime/snapshot.h"
#include "runtime/snapshot_saver.h"
#include "runtime/training_data.h"
#include "tests/support/faults.h"
#include "tests/support/relative_error.h"
#include "tests/support/temp_folder.h"

namespace orthant {

/// Returns text of an order-2 Markov chain over a few letters, spaces and newlines. Each pair of letters has its own
/// few likely successors, so that a model can learn them. Equal seeds give equal bytes on every machine.
inline std::string markov_text(uint64_t seed, size_t bytes) {
  static constexpr char kLetters[] = "abcdefghijklmnopqrstuv \n";
  constexpr uint64_t kKinds = sizeof(kLetters) - 1;
  uint64_t state = seed;
  std::string text;
  uint64_t before = 0, last = 1;
  while (text.size() < bytes) {
    const uint64_t draw = mix64(++state) % 8;
    const uint64_t choice = draw < 5 ? 0 : draw - 4;  // probability 5/8 for the likeliest successor
    const uint64_t next = mix64(seed * 1000003 + (before * kKinds + last) * 16 + choice) % kKinds;
    text += kLetters[next];
    before = last, last = next;
  }
  return text;
}

/// Holds the temporary folder, the run file and the data of one tiny run.
class TinyRun {
 public:
  /// overrides: settings as on the command line, such as "training.dtype=float32".
  explicit TinyRun(std::vector<std::string> overrides = {}) {
    folder_.write("text.txt", markov_text(7, 6000));
    folder_.write("held_out.txt", markov_text(7, 700).substr(100));
    folder_.write("run.toml", run_file());
    config_ = load_config(folder_ / "run.toml", overrides);
    check_with_advice(config_);
    data_ = std::make_unique<TrainingData>(open_training_data(config_));
  }

  const Config& config() const { return config_; }
  const TrainingData& data() const { return *data_; }
  std::string folder() const { return folder_.path(); }
  std::string run_file_path() const { return folder_ / "run.toml"; }
  /// Plans the run for `ranks` ranks with further overrides. They must not change [data] or the samples.
  Plan plan(int ranks, const std::vector<std::string>& overrides = {}) const {
    Config config = config_;
    if (!overrides.empty()) config = parse_config(print_config(config_), "run.toml", overrides);
    return advised_plan(config, facts_of(*data_, ranks));
  }

 private:
  std::string run_file() const {
    return fmt::format(R"(
[job]
dump_folder = "{0}/out"
[run]
threads_per_rank = 1
[model]
hidden_size = 24
intermediate_size = 40
num_hidden_layers = 2
num_attention_heads = 4
num_key_value_heads = 2
max_position_embeddings = 32
initializer_range = 0.2
[data]
path = ["{0}/text.txt"]
validation = ["{0}/held_out.txt"]
[training]
steps = 12
seq_len = 16
global_batch_size = 7
local_batch_size = 2
dtype = "float64"
[lr_scheduler]
warmup_steps = 3
[validation]
freq = 0
[checkpoint]
interval = 0
[metrics]
enable_tensorboard = false
)",
                       folder_.path());
  }

  TempFolder folder_;
  Config config_;
  std::unique_ptr<TrainingData> data_;
};

/// State of one rank after a step.
struct StepTrace {
  double loss = 0, norm = 0;
  at::Tensor gradients, weights;  // flat buffers; weights are the master weights, if the rank has all of them
  Traffic traffic;                // of this step alone
};

struct RankTrace {
  std::vector<StepTrace> steps;
  std::vector<at::Tensor> optimizer_state;  // in the order of Optimizer::state()
  at::Tensor values;
  int connections = 0;  // ranks to which this rank has connected
  const StepTrace& last() const { return steps.back(); }
};

/// Copies of the optimizer's state tensors.
inline std::vector<at::Tensor> copy_state(const Optimizer& optimizer) {
  std::vector<at::Tensor> state;
  for (const Optimizer::State& each : optimizer.state()) state.push_back(each.flat.clone());
  return state;
}

/// Whether all tensors are equal in every bit.
inline bool same_state(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  return std::ranges::equal(a, b, [](const at::Tensor& x, const at::Tensor& y) { return x.equal(y); });
}

/// Start, length and variations of the training by train_ranks().
struct Course {
  int64_t steps = 3;          // number of the last step
  std::string resume_from;    // directory of a checkpoint; empty: initialize from the seed
  bool save = false;          // saves the last step to dump_folder/checkpoints
  Fault fault = Fault::none;
  double descent_rate = 0;    // above 0: gradient descent at this rate, without clipping
  std::function<void(Session& session, int rank)> prepare = {};  // runs on each rank before step 1
};

/// A flat buffer with this rank's shard of every parameter. All ranks must call it together.
inline at::Tensor flat_of(const Session& session, at::Tensor (Session::*shard)(size_t) const) {
  const FlatLayout& flat = session.weights().flat();
  at::Tensor all;
  for (size_t p = 0; p < session.weights().parameters().size(); ++p) {
    const at::Tensor part = (session.*shard)(p).flatten();
    if (!all.defined()) all = at::zeros({flat.elements}, part.options());
    all.narrow(0, flat.parameter_offsets[p], part.numel()).copy_(part);
  }
  return all;
}

/// Trains the plan's ranks as threads. Returns their traces, by rank.
inline std::vector<RankTrace> train_ranks(const Plan& plan, const TrainingData& data, const Course& course = {}) {
  std::vector<RankTrace> ranks(static_cast<size_t>(plan.mesh.size()));
  run_ranks(plan.mesh.size(), [&](const Rendezvous& rendezvous, int rank) {
    Comm comm(plan.mesh, rank, rendezvous, {.transport = plan.config.run.transport});
    Session session(plan, data.train, comm, parts_with_fault(plan, comm, course.fault));
    TrainState state;
    if (course.resume_from.empty()) {
      session.weights().initialize(static_cast<uint64_t>(plan.config.training.seed));
    } else {
      state = load_snapshot(course.resume_from, plan, data, session);
    }
    if (course.prepare) course.prepare(session, rank);
    RankTrace& trace = ranks[static_cast<size_t>(rank)];
    while (state.step < course.steps) {
      StepTrace step;
      Traffic for_trace;  // messages that only the trace needs
      step.gradients = at::zeros({session.weights().flat().elements}, session.weights().masters().options());
      const auto copy_gradient = [&](size_t p) {
        const Traffic before = comm.total_traffic();
        const at::Tensor shard = session.gradient_shard(p).flatten();
        step.gradients.narrow(0, session.weights().flat().parameter_offsets[p], shard.numel()).copy_(shard);
        const Traffic after = comm.total_traffic();
        for_trace = {for_trace.calls + after.calls - before.calls, for_trace.bytes + after.bytes - before.bytes};
      };
      const bool in_backward = plan.config.optimizer.in_backward;
      if (in_backward) session.before_update = copy_gradient;
      const Traffic before = comm.total_traffic();
      const StepResult result = session.gradients(++state.step, {});
      step.loss = result.loss, step.norm = result.norm;
      for (size_t p = 0; p < session.weights().parameters().size() && !in_backward; ++p) copy_gradient(p);
      if (course.descent_rate > 0) {
        Weights& weights = session.weights();
        for (size_t p = 0; p < weights.parameters().size(); ++p) {
          weights.owned_master(p).sub_(weights.owned_gradient(p), course.descent_rate);
        }
        weights.publish();
      } else {
        session.update(state.step, result);
      }
      state.tokens += result.tokens;
      const Traffic after = comm.total_traffic();
      step.weights = flat_of(session, &Session::master_shard);
      step.traffic = {after.calls - before.calls - for_trace.calls, after.bytes - before.bytes - for_trace.bytes};
      trace.steps.push_back(step);
    }
    trace.connections = comm.num_connections();
    trace.optimizer_state = copy_state(session.optimizer());
    trace.values = flat_of(session, &Session::value_shard);
    SnapshotSaver saver(plan, data, session);
    if (course.save) saver.save(state);
    saver.wait();
  });
  return ranks;
}

/// Traffic that a rank sends in one step according to the plan.
inline Traffic planned_traffic(const Plan& plan, size_t of) {
  const auto rank = static_cast<int>(of);
  Traffic planned;
  for (const auto& entry : plan.communication) {
    planned.calls += plan.calls_of(entry, rank);
    planned.bytes += {plan.bytes_of(entry, rank), plan.received_by(entry, rank)};
  }
  return planned;
}

/// Returns each rank's sums over the held-out text. The number of batches exceeds the text, so that the last batch is
/// short and the rest are skipped. Before that, gradients of after_steps steps are computed, which change no weight.
inline std::vector<Session::Validation> validate_ranks(const Plan& plan, const TrainingData& data,
                                                       int64_t after_steps = 0) {
  constexpr int64_t kBatches = 50;
  std::vector<Session::Validation> sums(static_cast<size_t>(plan.mesh.size()));
  run_ranks(plan.mesh.size(), [&](const Rendezvous& rendezvous, int rank) {
    Comm comm(plan.mesh, rank, rendezvous, {.transport = plan.config.run.transport});
    Session session(plan, data.train, comm);
    session.weights().initialize(3);
    for (int64_t step = 1; step <= after_steps; ++step) session.gradients(step, {});
    sums[static_cast<size_t>(rank)] = session.validate(data.validation[0].samples, kBatches, data.bytes_of_token);
  });
  return sums;
}

/// The largest relative error of any parameter in a flat buffer, and the parameter's name.
struct NamedError {
  double error = 0;
  std::string name;
};
/// Compares the flat buffer of a rank with an unsharded one. Without rotary positions, the gradient of a key's bias is
/// 0 but for roundings, because it adds the same to all scores of a query. A column of its matrix is then the scale, as
/// in `verify`.
inline NamedError worst_parameter(const Plan& plan, const at::Tensor& have, const at::Tensor& want, int rank = 0) {
  const auto held = plan.parameters_of(rank), whole = parameter_table(plan.architecture);
  const FlatLayout flat = flat_layout(held), all = flat_layout(whole);
  NamedError worst;
  for (size_t p = 0; p < held.size(); ++p) {
    if (held[p].shard_size() == 0) continue;
    const at::Tensor part = have.narrow(0, flat.parameter_offsets[p], held[p].shard_size()).view(held[p].shard_shape());
    const auto named = [&](const ParameterInfo& one) { return one.name == held[p].global_name(); };
    const auto w = static_cast<size_t>(std::find_if(whole.begin(), whole.end(), named) - whole.begin());
    const at::Tensor of = want.narrow(0, all.parameter_offsets[w], whole[w].size()).view(whole[w].shape);
    double error = relative_error(part, shard_of(held[p], of));
    if (is_ignored_by_softmax(plan.architecture, held[p])) {
      const size_t m = w - 3;  // of the key's matrix: three matrices come before their biases
      ORTHANT_CHECK(whole[m].name.ends_with("k_proj.weight"), whole[m].name);
      const double matrix = want.narrow(0, all.parameter_offsets[m], whole[m].size()).norm().item<double>();
      const double column = matrix / std::sqrt(static_cast<double>(whole[m].shape[1]));
      error = (part - shard_of(held[p], of)).norm().item<double>() / column;
    }
    if (!(error <= worst.error)) worst = {error, held[p].name};
  }
  return worst;
}

}  // namespace orthant
