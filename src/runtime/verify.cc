#include "runtime/verify.h"

#include "comm/thread_ranks.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <mutex>

namespace orthant {
namespace {

// What the oracle has after each step.
struct Trace {
  std::vector<double> losses, norms;
  std::vector<at::Tensor> gradients;  // flat, of each step
  std::vector<at::Tensor> weights;
};

// The same run on one rank.
Plan oracle_of(const Plan& plan) {
  Config config = plan.config;
  config.parallelism = ParallelismConfig{};
  RunFacts facts = plan.facts;
  facts.ranks = 1;
  return make_plan(config, facts);
}

Trace run_oracle(const Plan& plan, const TrainingData& data, int64_t steps) {
  Trace trace;
  run_ranks(1, [&](const Rendezvous& meeting, int rank) {
    Comm comm(plan.mesh, rank, meeting);
    Session session(plan, data.train, comm);
    session.weights().initialize(static_cast<uint64_t>(plan.config.training.seed));
    for (int64_t step = 1; step <= steps; ++step) {
      const StepResult result = session.gradients(step, {});
      trace.losses.push_back(result.loss);
      trace.norms.push_back(result.norm);
      trace.gradients.push_back(session.weights().gradients().clone());
      session.update(step, result);
      trace.weights.push_back(session.weights().masters().clone());
    }
  });
  return trace;
}

double relative(double have, double want) {
  const double error = std::abs(have - want) / std::max(std::abs(want), std::numeric_limits<double>::min());
  return std::isfinite(error) ? error : std::numeric_limits<double>::infinity();
}

double relative(const at::Tensor& have, const at::Tensor& want) {
  const double error = (have - want).to(at::kDouble).norm().item<double>();
  const double size = want.to(at::kDouble).norm().item<double>();
  if (error == 0) return 0;
  return std::isfinite(error) && size > 0 ? error / size : std::numeric_limits<double>::infinity();
}

// What the ranks find, put together. A difference in an earlier step, tensor or rank is the one that is told.
class Findings {
 public:
  explicit Findings(double bound) {
    report_.loss_bound = bound;
    report_.gradients.bound = report_.weights.bound = bound;
  }

  void loss(int64_t step, int rank, double oracle, double layout, double norm_error) {
    const std::lock_guard lock(mutex_);
    const double error = relative(layout, oracle);
    if (step == 1 || error > report_.loss_error) {
      report_.oracle_loss = oracle;
      report_.layout_loss = layout;
      report_.loss_error = error;
    }
    report_.norm_error = std::max(report_.norm_error, norm_error);
    tell(error, step, 3, 0, rank, fmt::format("the loss ({:.12g} for {:.12g})", layout, oracle));
    tell(norm_error, step, 2, 0, rank, "the gradient norm");
  }

  void tensor(Worst VerifyReport::*worst, int64_t step, int rank, size_t index, const ParameterInfo& info, double error) {
    const std::lock_guard lock(mutex_);
    const bool gradient = worst == &VerifyReport::gradients;
    Worst& w = report_.*worst;
    if (w.name.empty() || error > w.relative_error) {
      w = {info.name, error, w.bound, step, rank};
    }
    const std::string layer = info.decays() && info.layer >= 0 ? fmt::format(", layer {}", info.layer) : "";
    tell(error, step, gradient ? 0 : 1, index, rank, fmt::format("{} {}{}", gradient ? "the gradient of" : "the weight", info.name, layer));
  }

  VerifyReport finish(int64_t steps) {
    report_.steps = steps;
    report_.ok = report_.first_difference.empty();
    return report_;
  }

 private:
  // Tensors are named before norms and losses: they say where to look.
  void tell(double error, int64_t step, int kind, size_t index, int rank, const std::string& what) {
    if (error <= report_.loss_bound) return;
    const std::array<int64_t, 4> place = {step, kind, static_cast<int64_t>(index), rank};
    if (!report_.first_difference.empty() && place >= first_) return;
    first_ = place;
    report_.first_difference = fmt::format("step {}, rank {}: {} is off by {:.2e} relative to the oracle, {:.1e} is what "
                                           "rounding explains", step, rank, what, error, report_.loss_bound);
  }

  std::mutex mutex_;
  VerifyReport report_;
  std::array<int64_t, 4> first_{};
};

}  // namespace

double rounding_bound(const Plan& plan) {
  const std::string& dtype = plan.config.training.dtype;
  if (dtype == "float64") return 1e-10;
  // Sums of n rounded terms differ by at most n eps times the sum of magnitudes when their order changes. n: the longest
  // chain a gradient's element goes through; docs/numerics.md.
  const auto& a = plan.architecture;
  const double terms = static_cast<double>(plan.tokens_per_step()) +
                       static_cast<double>(a.num_hidden_layers) *
                           static_cast<double>(2 * a.hidden_size + a.intermediate_size + plan.config.training.seq_len);
  const double eps = dtype == "bfloat16" ? 0x1p-8 : 0x1p-24;
  return dtype == "bfloat16" ? eps * std::sqrt(terms) : eps * terms;
}

VerifyReport verify_layout(const Plan& plan, const TrainingData& data, int64_t steps, Mutation mutation) {
  const Plan oracle_plan = oracle_of(plan);
  const Trace oracle = run_oracle(oracle_plan, data, steps);
  Findings findings(rounding_bound(plan));
  run_ranks(plan.mesh.size(), [&](const Rendezvous& meeting, int rank) {
    Comm comm(plan.mesh, rank, meeting);
    Session session(plan, data.train, comm, mutation);
    Weights& weights = session.weights();
    weights.initialize(static_cast<uint64_t>(plan.config.training.seed));
    for (int64_t step = 1; step <= steps; ++step) {
      const auto i = static_cast<size_t>(step - 1);
      const StepResult result = session.gradients(step, {});
      findings.loss(step, rank, oracle.losses[i], result.loss, relative(result.norm, oracle.norms[i]));
      for (size_t p = 0; p < weights.parameters().size(); ++p) {
        findings.tensor(&VerifyReport::gradients, step, rank, p, weights.parameters()[p],
                        relative(weights.gradient(p), weights.view(oracle.gradients[i], p)));
      }
      session.update(step, result);
      for (size_t p = 0; p < weights.parameters().size(); ++p) {
        findings.tensor(&VerifyReport::weights, step, rank, p, weights.parameters()[p],
                        relative(weights.master(p), weights.view(oracle.weights[i], p)));
      }
    }
  });
  return findings.finish(steps);
}

}  // namespace orthant
