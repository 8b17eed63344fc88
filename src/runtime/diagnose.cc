// Finds the first tensor that is not finite: repeats a step's forward, and examines the result of every primitive.
#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "parallel/sequence/run.h"
#include "runtime/session.h"

namespace orthant {
namespace {

bool finite(const at::Tensor& t) { return at::isfinite(t).all().item<bool>(); }

// The primitives, wrapped: each writes the name of its result to `found` if that is the first that is not finite.
Primitives watched(const Primitives& inner, const Weights& weights, std::string& found) {
  auto look = [&found](const at::Tensor& t, const std::string& what) {
    if (found.empty() && !finite(t)) found = what;
    return t;
  };
  auto name = [&weights](const Weight& weight) {
    const auto [first, end] = weights.flat().members[static_cast<size_t>(weight.index)];
    const auto& info = weights.parameters()[first];
    return end - first > 1 ? info.fused : info.name;
  };
  Primitives p = inner;
  p.embedding = [=, &inner](const at::Tensor& tokens, const Weight& table) {
    return look(inner.embedding(tokens, table), "the output of " + name(table));
  };
  p.add_positions = [=, &inner](const at::Tensor& x, const Microbatch& batch, const Weight& table) {
    return look(inner.add_positions(x, batch, table), "the output of " + name(table));
  };
  p.add_norm = [=, &inner](const std::string& function, const at::Tensor& x, const at::Tensor& residual,
                           const Weight& gain, double eps) {
    auto both = inner.add_norm(function, x, residual, gain, eps);
    look(both.second, "the residual stream before " + name(gain));
    look(both.first, "the output of " + name(gain));
    return both;
  };
  p.linear = [=, &inner](const at::Tensor& x, const Weight& weight) {
    return look(inner.linear(x, weight), "the output of " + name(weight));
  };
  p.attention = [=, &inner](const at::Tensor& qkv, const Microbatch& batch, const AttentionShape& shape) {
    return look(inner.attention(qkv, batch, shape), "the output of attention");
  };
  p.local = [=, &inner](const std::string& function, const at::Tensor& x, const Weight* weight,
                        const AttentionShape& shape, double eps) {
    return look(inner.local(function, x, weight, shape, eps), "the output of " + function);
  };
  p.dropout = [=, &inner](const at::Tensor& x, const Microbatch& batch, const DropoutKey& key) {
    return look(inner.dropout(x, batch, key), "the output of dropout");
  };
  p.cross_entropy = [=, &inner](const at::Tensor& x, const Weight& head, const Microbatch& batch,
                                const OutputLoss& loss) {
    return look(inner.cross_entropy(x, head, batch, loss), "the loss");
  };
  return p;
}

// The index of the first parameter whose owned weights are not finite; the number of parameters if all are.
size_t first_bad_weight(const Weights& weights) {
  size_t i = 0;
  while (i < weights.parameters().size() && finite(weights.owned_value(i))) ++i;
  return i;
}

}  // namespace

std::string Session::first_weight_not_finite() const {
  const size_t bad = first_bad_weight(weights_);
  return bad == weights_.parameters().size() ? "" : "the weight " + weights_.parameters()[bad].name;
}

Session::NotFinite Session::find_first_not_finite(int64_t step) {
  // If results are late, the gradients may be those of the next step by now.
  if (parts_.reports_late && step_ != step) {
    const at::Tensor statistics = initial_step_statistics({});
    carry_out(step, statistics, {});
    finish_gradients(statistics);
  }
  at::NoGradGuard no_grad;
  // Position of the tensor in the order of computation: weights, results of forward by stage, gradients. Backward goes
  // from the last parameter to the first. A parameter has the same position on all ranks that own parts of it.
  const auto stages = static_cast<int>(plan_.stages.size());
  const auto parameters = weights_.parameters().size();
  size_t place = 2 * parameters + static_cast<size_t>(stages);  // nothing was found
  NotFinite found{.what = first_weight_not_finite()};
  if (!found.what.empty()) place = first_bad_weight(weights_);

  int stage = 0;
  std::string by_forward;
  const Transformer model(parts_.architecture, weights_, watched(parts_.primitives, weights_, by_forward),
                          {.seed = static_cast<uint64_t>(plan_.config.training.seed)});
  const std::vector<Action> row = plan_.with_gathers(select_forwards(parts_.row));
  const auto activity =
      activity_reporter(row.size(), fmt::format("of looking for the first value that is not finite in step {}", step));
  ModelStages looking(parts_.pipeline, model, weights_, nullptr, sharded_.get(), comm_);
  looking.run(row,
              {.sequences = microbatch_sequences(parts_.data_shard),
               .load = [&](int microbatch) { return load(step, microbatch, labels_of(step)); },
               .announce =
                   [&](const Action& action, size_t index) {
                     activity(action, index);
                     if (by_forward.empty()) stage = action.stage;
                   },
               .loss = [&](const at::Tensor& sum) {  // of a sharded vocabulary, whose loss no primitive here computes
                 if (by_forward.empty() && !finite(sum)) by_forward = "the loss", stage = stages - 1;
               }});
  if (found.what.empty() && !by_forward.empty()) {
    found.what = by_forward, place = parameters + static_cast<size_t>(stage);
  }
  for (size_t i = parameters; i-- > 0 && found.what.empty();) {
    // An update in backward has freed the gradients, but stopped at the first that was not finite.
    const bool is_finite = plan_.config.optimizer.in_backward ? not_finite_ != i : finite(weights_.owned_gradient(i));
    if (is_finite) continue;
    found.what = "the gradient of " + weights_.parameters()[i].name;
    place = 2 * parameters + static_cast<size_t>(stages) - 1 - i;
  }

  // If several ranks have the lowest position, the lowest of them is the first.
  const auto ranks = static_cast<size_t>(comm_.mesh().size());
  const double own = -static_cast<double>(place * ranks + static_cast<size_t>(comm_.rank()));
  const at::Tensor first = at::full({1}, own, at::kDouble);
  comm_.all_reduce_small(first, all_axes(comm_.mesh()), 1).wait();
  found.first = first.item<double>() == own;
  return found;
}

}  // namespace orthant
