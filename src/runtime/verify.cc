// Runs the oracle and the layout on the same data, and compares them tensor by tensor after each step.
#include "runtime/verify.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <mutex>

#include "base/errors.h"
#include "comm/thread_ranks.h"
#include "model/cuda_device.h"
#include "plan/rounding.h"
#include "runtime/from_plan.h"
#include "runtime/snapshot.h"
#include "runtime/traffic.h"

namespace orthant {
namespace {

size_t index_in(const OracleTrace& oracle, const ParameterInfo& held) {
  const auto named = [&](const ParameterInfo& p) { return p.name == held.global_name(); };
  return static_cast<size_t>(std::ranges::find_if(oracle.parameters, named) - oracle.parameters.begin());
}

// The rank's shard of a parameter, from one of the oracle's flat buffers.
at::Tensor part_of(const OracleTrace& oracle, const at::Tensor& buffer, const ParameterInfo& held) {
  const size_t index = index_in(oracle, held);
  const auto& full = oracle.parameters[index];
  return shard_of(held, buffer.narrow(0, oracle.flat.parameter_offsets[index], full.size()).view(full.shape));
}

// The plan of the same run on one rank.
Plan oracle_of(const Plan& plan) {
  Config config = plan.config;
  config.parallelism = ParallelismConfig{};
  config.run.device = "cpu";
  config.optimizer.in_backward = false;  // the same update, after backward
  RunFacts facts = plan.facts;
  facts.ranks = 1;
  return make_plan(config, facts);
}

void add(TrafficTable& sum, const TrafficTable& more) {
  for (const auto& [key, traffic] : more) {
    sum[key].calls += traffic.calls;
    sum[key].bytes += traffic.bytes;
  }
}

// Throws if the oracle is not finite: the layout would only repeat that.
void require_finite(bool finite, int64_t step, const char* after, const std::string& found) {
  if (finite) return;
  throw Error(fmt::format("the one-rank oracle is not finite in step {}{}: {}. The layout has no part in it: lower "
                          "optimizer.lr or training.max_norm, or look at the weights and the data",
                          step, after, found.empty() ? "the loss or the gradient norm" : found));
}

// Sets a session to the oracle's weights and optimizer state after a step (counted from 0).
void load_oracle_state(const OracleTrace& oracle, size_t step, Session& session) {
  Weights& weights = session.weights();
  for (size_t p = 0; p < weights.parameters().size(); ++p) {
    const ParameterInfo& held = weights.parameters()[p];
    weights.set(p, part_of(oracle, oracle.weights[step], held));
    const auto& state = session.optimizer().state();
    for (size_t s = 0; s < state.size(); ++s) {
      if (!state[s].has(held)) continue;
      const at::Tensor& unsharded = oracle.optimizer_state[step][s][index_in(oracle, held)];
      state[s].part(p).copy_(weights.owned_part_of_shard(shard_of(held, unsharded), p));
    }
  }
}

double relative(double have, double want) {
  const double error = std::abs(have - want) / std::max(std::abs(want), std::numeric_limits<double>::min());
  return std::isfinite(error) ? error : std::numeric_limits<double>::infinity();
}

// least: lower bound of the denominator.
double relative(const at::Tensor& have, const at::Tensor& want, double least = 0) {
  const double error = (have.cpu() - want).to(at::kDouble).norm().item<double>();
  const double size = std::max(want.to(at::kDouble).norm().item<double>(), least);
  if (error == 0) return 0;
  return std::isfinite(error) && size > 0 ? error / size : std::numeric_limits<double>::infinity();
}

// Collects the findings of all ranks. Reports the difference in the earliest step, then tensor, then rank.
class Findings {
 public:
  explicit Findings(const RoundingBounds& bounds) {
    report_.loss_bound = report_.gradients.bound = bounds.gradients;
    report_.weights.bound = bounds.weights;
  }

  void loss(int64_t step, int rank, const StepResult& result, double oracle, double norm_error) {
    const std::lock_guard lock(mutex_);
    const double layout = result.loss;
    if (rank == 0) report_.labels += result.valid_labels;
    const double error = relative(layout, oracle);
    const bool first_of_equals = error == report_.loss_error && step < report_.loss_step;
    if (report_.loss_step == 0 || error > report_.loss_error || first_of_equals) {
      report_.loss_step = step;
      report_.oracle_loss = oracle;
      report_.layout_loss = layout;
      report_.loss_error = error;
    }
    report_.norm_error = std::max(report_.norm_error, norm_error);
    record_difference(error, report_.loss_bound, {step, 3, 0, rank},
                      fmt::format("the loss ({:.12g} instead of {:.12g})", layout, oracle));
    record_difference(norm_error, report_.loss_bound, {step, 2, 0, rank}, "the gradient norm");
  }

  // bound: of this error; at least that of all tensors.
  void tensor(Worst VerifyReport::* worst, int64_t step, int rank, size_t index, const ParameterInfo& info,
              double error, double bound) {
    const std::lock_guard lock(mutex_);
    const bool gradient = worst == &VerifyReport::gradients;
    Worst& w = report_.*worst;
    if (gradient) {
      double& of_this = report_.gradient_errors[info.name];
      of_this = std::max(of_this, error);
    }
    const auto share = [](double of, double most) { return most > 0 ? of / most : of; };
    if (w.name.empty() || share(error, bound) > share(w.relative_error, w.bound)) {
      w = {info.name, error, bound, step, rank};
    }
    const std::string layer = info.is_matrix() && info.layer >= 0 ? fmt::format(", layer {}", info.layer) : "";
    record_difference(error, bound, {step, gradient ? 0 : 1, static_cast<int64_t>(index), rank},
                      fmt::format("{} {}{}", gradient ? "the gradient of" : "the weight", info.name, layer));
  }

  void traffic(int64_t step, int rank, const std::string& difference) {
    if (difference.empty()) return;
    const std::lock_guard lock(mutex_);
    record_difference({step, 4, 0, rank}, difference);
  }

  VerifyReport finish(int64_t steps) {
    report_.steps = steps;
    report_.ok = report_.first_difference.empty() && report_.labels > 0;
    return report_;
  }

 private:
  // Step, kind, tensor index and rank of a difference. Gradients and weights come before norm, loss and traffic,
  // because they show where the mistake is.
  using Location = std::array<int64_t, 4>;

  void record_difference(double error, double bound, const Location& location, const std::string& what) {
    if (error <= bound) return;
    const std::string law = bound > 0 ? fmt::format("rounding explains at most {:.1e}", bound) : "it must be equal";
    record_difference(
        location, fmt::format("{} has a relative error of {:.2e} against the oracle; {}", what, error, law));
  }

  void record_difference(const Location& location, const std::string& difference) {
    if (!report_.first_difference.empty() && location >= first_) return;
    first_ = location;
    report_.first_difference = fmt::format("step {}, rank {}: {}", location[0], location[3], difference);
  }

  std::mutex mutex_;
  VerifyReport report_;
  Location first_{};
};

// Lower bound of the denominator for the gradient of a bias on a projection from the residual stream; 0 for other
// parameters. `of_oracle` is the buffer with the oracle's gradients. Such a gradient is the column of the matrix's
// gradient for an input that is always 1. The other inputs are normalized to that size, so the root mean square of the
// column norms is a fair scale. The gradient of a key bias is nearly zero where rotary channels turn slowly, or without
// rotary positions. The reason is that the softmax does not change when a constant is added to all scores.
double least_gradient(const OracleTrace& oracle, const at::Tensor& of_oracle, const std::vector<ParameterInfo>& held,
                      size_t p) {
  if (held[p].role != ParameterRole::from_stream_bias) return 0;
  const std::string layer = held[p].name.substr(0, held[p].name.rfind('.'));
  const auto matrix = std::ranges::find(held, layer + ".weight", &ParameterInfo::name);
  const at::Tensor gradient = part_of(oracle, of_oracle, *matrix);
  return gradient.norm().item<double>() / std::sqrt(static_cast<double>(std::max<int64_t>(1, gradient.size(1))));
}

// How many rounding errors of one device a layout's gradient may differ from that device's; docs/derivations.md.
constexpr double kRoundingErrors = 3;
// As a share of the gradient: a mistake such as a mean in place of a sum is larger.
constexpr double kLargestRounding = 0.3;

// Measures OracleTrace::rounding_errors. Runs the oracle's steps in float32, each from the rounded weights that the
// oracle began it with.
std::vector<std::vector<double>> measure_rounding_errors(const Plan& oracle, const TrainingData& data,
                                                         const OracleTrace& trace, const StepProgress& progress) {
  Config config = oracle.config;
  config.training.dtype = "float32";
  const Plan plan = make_plan(config, oracle.facts);
  std::vector<std::vector<double>> errors(trace.gradients.size());
  run_ranks(1, [&](const Rendezvous& rendezvous, int rank) {
    Comm comm(plan.mesh, rank, rendezvous, transport_options(config));
    Session session(plan, data.train, comm);
    Weights& weights = session.weights();
    load_first_weights(plan, weights);
    const auto report = [&](size_t done) {
      if (progress) progress("one device in float32", static_cast<int64_t>(done), std::ssize(errors));
    };
    report(0);
    for (size_t i = 0; i < errors.size(); ++i) {
      for (size_t p = 0; p < weights.parameters().size(); ++p) {
        const ParameterInfo& held = weights.parameters()[p];
        const at::Tensor master = i == 0 ? weights.master(p) : part_of(trace, trace.weights[i - 1], held);
        weights.set(p, master.to(at::kBFloat16).to(at::kFloat));
      }
      session.gradients(static_cast<int64_t>(i) + 1, {});
      for (size_t p = 0; p < weights.parameters().size(); ++p) {
        const at::Tensor rounded = part_of(trace, trace.gradients[i], weights.parameters()[p]);
        const double error =
            at::linalg_vector_norm(weights.gradient(p) - rounded, 2, {}, false, at::kDouble).item<double>();
        errors[i].push_back(error / std::sqrt(static_cast<double>(std::max<int64_t>(1, rounded.numel()))));
      }
      report(i + 1);
    }
  });
  return errors;
}

}  // namespace

OracleTrace trace_oracle(const Plan& plan, const TrainingData& data, int64_t steps, const StepProgress& progress) {
  const Plan one = oracle_of(plan);
  OracleTrace trace;
  trace.parameters = one.parameters;
  trace.flat = flat_layout(trace.parameters);
  run_ranks(1, [&](const Rendezvous& rendezvous, int rank) {
    Comm comm(one.mesh, rank, rendezvous, transport_options(one.config));
    Session session(one, data.train, comm);
    load_first_weights(one, session.weights());
    const auto report = [&](int64_t done) {
      if (progress) progress("one device", done, steps);
    };
    report(0);
    for (int64_t step = 1; step <= steps; ++step) {
      const StepResult result = session.gradients(step, {});
      require_finite(result.is_finite(), step, "", result.is_finite() ? "" : session.find_first_not_finite(step).what);
      trace.losses.push_back(result.loss);
      trace.norms.push_back(result.norm);
      trace.gradients.push_back(session.weights().gradients().clone());
      session.update(step, result);
      const std::string weight = session.first_weight_not_finite();
      require_finite(weight.empty(), step, ", after the update", weight);
      trace.weights.push_back(session.weights().masters().clone());
      auto& state = trace.optimizer_state.emplace_back();
      for (const Optimizer::State& each : session.optimizer().state()) {
        auto& tensors = state.emplace_back();
        for (size_t p = 0; p < trace.parameters.size(); ++p) {
          const ParameterInfo& parameter = trace.parameters[p];
          tensors.push_back(each.has(parameter) ? each.part(p).clone().view(parameter.shape) : at::Tensor());
        }
      }
      report(step);
    }
  });
  if (one.config.training.dtype == "bfloat16")
    trace.rounding_errors = measure_rounding_errors(one, data, trace, progress);
  return trace;
}

namespace {

// The steps of one rank, each compared with the oracle's.
class ComparedRank {
 public:
  ComparedRank(const OracleTrace& oracle, const Plan& plan, Session& session, Comm& comm, Findings& findings)
      : oracle_(oracle),
        plan_(plan),
        session_(session),
        comm_(comm),
        findings_(findings),
        bounds_(rounding_bounds(plan)),
        free_running_(plan.config.training.dtype == "float64") {
    session_.before_update = [this](size_t parameter) { compare_gradient(parameter); };
  }

  void run(int64_t step) {
    const auto i = static_cast<size_t>(step - 1);
    step_ = step, compared_ = {};
    if (step > 1 && !free_running_) load_oracle_state(oracle_, i - 1, session_);
    TrafficTable before = comm_.traffic();
    StepResult result = session_.gradients(step, {});
    TrafficTable sent = traffic_since(before, comm_.traffic());
    findings_.loss(step, comm_.rank(), result, oracle_.losses[i], relative(result.norm, oracle_.norms[i]));
    if (!free_running_) result.norm = oracle_.norms[i];
    before = comm_.traffic();
    session_.update(step, result);
    add(sent, traffic_since(before, comm_.traffic()));
    sent = traffic_since(compared_, sent);
    compare_weights(step);
    if (plan_.post_validates()) return;  // the number of its messages depends on the norms
    const TrafficTable planned = planned_traffic_table(plan_, comm_.rank());
    findings_.traffic(step, comm_.rank(), traffic_difference(planned, sent));
  }

 private:
  // Without rotary positions, the gradient of a key's bias is 0 but for roundings, and so are its updates. In place of
  // the bias, the weights of a column of its matrix are then the scale of errors.
  double least_weight(const at::Tensor& of_oracle, size_t p) const {
    const bool is_zero = is_ignored_by_softmax(plan_.architecture, parameters()[p]);
    return is_zero ? least_gradient(oracle_, of_oracle, parameters(), p) : 0;
  }

  const std::vector<ParameterInfo>& parameters() const { return session_.weights().parameters(); }

  // Compares the gradient, whose comparison takes messages of its own, and continues with the oracle's.
  void compare_gradient(size_t p) {
    const auto i = static_cast<size_t>(step_ - 1);
    Weights& weights = session_.weights();
    const double rest = bounds_.rest * oracle_.norms[i] / bounds_.gradients;
    const double column = free_running_ ? 0 : least_gradient(oracle_, oracle_.gradients[i], parameters(), p);
    const at::Tensor want = part_of(oracle_, oracle_.gradients[i], parameters()[p]);
    const double least = std::max(rest, column);
    double bound = bounds_.gradients;
    if (!oracle_.rounding_errors.empty()) {
      const double size = want.to(at::kDouble).norm().item<double>();
      const double of_element = oracle_.rounding_errors[i][index_in(oracle_, parameters()[p])];
      const double error = kRoundingErrors * of_element * std::sqrt(static_cast<double>(want.numel()));
      if (size > least) bound = std::max(bound, std::min(error / size, kLargestRounding));
    }
    const TrafficTable before = comm_.traffic();
    findings_.tensor(&VerifyReport::gradients, step_, comm_.rank(), p, parameters()[p],
                     relative(session_.gradient_shard(p), want, least), bound);
    add(compared_, traffic_since(before, comm_.traffic()));
    if (!free_running_) weights.owned_gradient(p).copy_(weights.owned_part_of_shard(want, p));
  }

  void compare_weights(int64_t step) {
    const at::Tensor& want = oracle_.weights[static_cast<size_t>(step - 1)];
    for (size_t p = 0; p < parameters().size(); ++p) {
      findings_.tensor(
          &VerifyReport::weights, step, comm_.rank(), p, parameters()[p],
          relative(session_.master_shard(p), part_of(oracle_, want, parameters()[p]), least_weight(want, p)),
          bounds_.weights);
    }
  }

  const OracleTrace& oracle_;
  const Plan& plan_;
  Session& session_;
  Comm& comm_;
  Findings& findings_;
  RoundingBounds bounds_;
  bool free_running_;
  int64_t step_ = 0;
  TrafficTable compared_;  // the messages of this step's comparisons
};

}  // namespace

VerifyReport verify_against(const OracleTrace& oracle, const Plan& plan, const TrainingData& data,
                            const StepProgress& progress, const PartsOf& parts_of) {
  const auto steps = static_cast<int64_t>(oracle.losses.size());
  Findings findings(rounding_bounds(plan));
  run_ranks(plan.mesh.size(), [&](const Rendezvous& rendezvous, int rank) {
    if (plan.config.run.device == "cuda") select_cuda_device(rank);
    Comm comm(plan.mesh, rank, rendezvous, transport_options(plan.config));
    Session session(plan, data.train, comm, parts_of(plan, comm));
    load_first_weights(plan, session.weights());
    ComparedRank compared(oracle, plan, session, comm, findings);
    const auto report = [&](int64_t done) {
      if (progress && rank == 0) progress("the layout", done, steps);
    };
    report(0);
    for (int64_t step = 1; step <= steps; ++step) {
      compared.run(step);
      report(step);
    }
  });
  return findings.finish(steps);
}

VerifyReport verify_layout(const Plan& plan, const TrainingData& data, int64_t steps, const StepProgress& progress) {
  return verify_against(trace_oracle(plan, data, steps, progress), plan, data, progress);
}

}  // namespace orthant
