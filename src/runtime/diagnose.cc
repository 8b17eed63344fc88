// Where a run went wrong: the same forward again, with every primitive's result looked at.
#include <ATen/ATen.h>

#include <numeric>

#include "parallel/sequence/run.h"
#include "runtime/session.h"

namespace orthant {
namespace {

bool finite(const at::Tensor& t) { return at::isfinite(t).all().item<bool>(); }

// The primitives, each telling `found` of the first result that is not finite.
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
  p.add_norm = [=, &inner](const at::Tensor& x, const at::Tensor& residual, const Weight& gain, double eps) {
    auto both = inner.add_norm(x, residual, gain, eps);
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
  p.swiglu = [=, &inner](const at::Tensor& gate_up) { return look(inner.swiglu(gate_up), "the output of SwiGLU"); };
  p.dropout = [=, &inner](const at::Tensor& x, const Microbatch& batch, const DropoutKey& key) {
    return look(inner.dropout(x, batch, key), "the output of dropout");
  };
  p.cross_entropy = [=, &inner](const at::Tensor& x, const Weight& head, const Microbatch& batch) {
    return look(inner.cross_entropy(x, head, batch), "the loss");
  };
  return p;
}

}  // namespace

std::string Session::first_weight_not_finite() const {
  for (size_t i = 0; i < weights_.parameters().size(); ++i) {
    if (!finite(weights_.master(i))) return "the weight " + weights_.parameters()[i].name;
  }
  return "";
}

std::string Session::first_not_finite(int64_t step) const {
  at::NoGradGuard no_grad;
  // Ranks that attend or multiply together must all go on, whoever has found it.
  const bool together = plan_.sequence.parallel() || plan_.tensor.rows * plan_.tensor.columns > 1;
  std::string found = first_weight_not_finite();
  if (!found.empty() && !together) return found;
  const Primitives inner = primitives_of(plan_, comm_);
  const Transformer model(plan_.architecture, weights_, watched(inner, weights_, found),
                          {.seed = static_cast<uint64_t>(plan_.config.training.seed)});
  for (size_t i = 0; i < share_.microbatches.size() && (together || found.empty()); ++i) {
    if (share_.microbatches[i].size() > 0) model.forward(load(step, static_cast<int>(i), labels_of(step)));
  }
  if (!found.empty()) return found;
  // Backward goes from the last parameter to the first.
  for (size_t i = weights_.parameters().size(); i-- > 0;) {
    if (!finite(weights_.gradient(i))) return "the gradient of " + weights_.parameters()[i].name;
  }
  return "";
}

}  // namespace orthant
