// Counts the roundings of a plan and derives the bounds of docs/derivations.md from them.
#include "plan/rounding.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/errors.h"
#include "base/text.h"
#include "model/block_plan.h"
#include "model/optimizer_plan.h"
#include "plan/vocabulary.h"

namespace orthant {
namespace {

// The numbers of one block that the bounds depend on. docs/derivations.md explains each.
struct BlockRoundings {
  int64_t additions = 0;  // that an element passes through one after the other, forward and backward
  int64_t stored = 0;     // tensors that forward stores in the working dtype; backward stores as many gradients
  int64_t products = 0, biases = 0;

  void add(const Operation& operation, const Architecture& a, int64_t seq_len);
};

void BlockRoundings::add(const Operation& operation, const Architecture& a, int64_t seq_len) {
  additions += operation.additions;
  stored += operation.stored;
  // Sums over keys: one in forward, two in backward. With Linformer, over the tokens of a summary and the summaries.
  if (operation.kind == OperationKind::attention) additions += 3 * (seq_len + a.linformer_length);
  if (operation.kind != OperationKind::linear) return;
  products += 1;
  biases += operation.has_bias() ? 1 : 0;
}

// The error of weights after an update by Muon whose products have another order: that of the update, times its size
// relative to the initial weights.
double muon_bound(const Plan& plan) {
  const OptimizerConfig& optimizer = plan.config.optimizer;
  double largest = 0;
  for (const ParameterInfo& matrix : plan.parameters) {
    if (!is_updated_as_matrix(optimizer, matrix)) continue;
    const auto terms = static_cast<double>(std::ranges::max(matrix.shape));
    largest = std::max(largest, std::sqrt(terms) * 0.2 * optimizer.lr / matrix.init_std);
  }
  return 5 * std::pow(3.4445, 5) * 0x1p-24 * largest;
}

}  // namespace

RoundingBounds rounding_bounds(const Plan& plan) {
  const Config& config = plan.config;
  const auto& a = plan.architecture;
  BlockRoundings block;
  for (const Operation& operation : block_operations(a)) block.add(operation, a, config.training.seq_len);
  const int64_t head = 3 * a.hidden_size + 2 * a.vocab_size;
  const auto additions =
      static_cast<double>(plan.tokens_per_step() + a.num_hidden_layers * block.additions + head);
  const double random = std::sqrt(2 * additions);
  if (config.training.dtype == "float64") return {.gradients = 1e-10, .weights = 1e-10, .rest = random * 0x1p-53};
  double bound = 2 * additions * 0x1p-24;
  if (config.training.dtype == "bfloat16") {
    int64_t roundings = 2 * (2 * block.stored * a.num_hidden_layers + 4);
    // The slope of a capped logit is rounded.
    if (a.final_logit_softcapping > 0) roundings += 2;
    // Ring self-attention keeps rounded probabilities; the oracle, which runs on one device, keeps none.
    if (plan.sequence.method == SequenceMethod::ring_self_attention) roundings += a.num_hidden_layers;
    // The partial sums of columns are rounded before they are summed.
    if (plan.tensor.columns > 1) roundings += block.products * a.num_hidden_layers + 1;
    // So are the gradients of key heads that several columns read.
    if (a.num_key_value_heads % plan.tensor.columns != 0) roundings += a.num_hidden_layers;
    // Products are rounded before a bias is added.
    if (plan.tensor.rows * plan.tensor.columns > 1) roundings += block.biases * a.num_hidden_layers;
    // GPUs' attention rounds probabilities, and their gradients.
    if (config.run.device == "cuda") roundings += 2 * a.num_hidden_layers;
    // Exponentials are rounded in place of logits, and so are the ranks' partial sums of the head's input gradient.
    if (!plan.vocabulary.empty()) roundings += 3;
    // Algorithm 2 rounds the sum of these over columns too, before the factors of tokens are known.
    if (sums_input_gradient_early(plan) && plan.tensor.columns > 1) roundings += 1;
    bound += std::sqrt(static_cast<double>(roundings)) * 0x1p-8;
  }
  const bool muon_on_gpu = config.run.device == "cuda" && config.optimizer.name == "muon";
  return {.gradients = bound, .weights = muon_on_gpu ? muon_bound(plan) : 0, .rest = random * 0x1p-24};
}

void check_bounds_detect_mistakes(const Plan& plan) {
  const double bound = rounding_bounds(plan).gradients;
  if (bound <= 0.1) return;
  throw ConfigError(fmt::format("{}: with {} rounding alone may change gradients by {:.2g} of their size, and hide a "
                                "mistake; verify in \"float64\", or with a smaller {}",
                                plan.config.locate("training.dtype"), counted(plan.tokens_per_step(), "token"), bound,
                                plan.config.locate("training.global_batch_size")));
}

}  // namespace orthant
