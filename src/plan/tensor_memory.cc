#include "plan/tensor_memory.h"

#include <algorithm>

namespace orthant {
namespace {

// Bytes of tensors by what they are; N tokens, of which the stream here stands for some.
struct Sizes {
  int64_t part = 0;      // the stream's part on this rank
  int64_t gathered = 0;  // the stream of all columns: 0 where it is not cut, and nothing is gathered
  int64_t summand = 0;   // a sum over columns before it is settled, [N, C]
  int64_t packed = 0;    // and its copy on the way
  int64_t panels = 1;    // of the stream, where it is gathered beside its gradient's sum; no more of it is here
  int64_t panel_of(int64_t all) const { return (all + panels - 1) / panels; }
  int64_t qkv = 0, heads = 0, gate_up = 0, hidden = 0;  // this column's, [N, ...]
  int64_t statistic = 0;
};

Sizes sizes_of(const Architecture& a, const TensorPlan& plan, const TensorShape& s) {
  const int64_t row = s.sequences * s.tokens * s.element_bytes;
  Sizes z;
  const bool cut = plan.columns > 1 && plan.stream != StreamCut::none;
  z.part = cut ? (row * a.hidden_size + plan.columns - 1) / plan.columns : row * a.hidden_size;
  z.gathered = cut ? row * a.hidden_size : 0;
  z.summand = plan.columns > 1 ? row * a.hidden_size : 0;
  z.packed = z.summand;
  const auto all = stream_panels(plan, s.sequences, s.tokens, a.hidden_size, true, s.element_bytes);
  z.panels = static_cast<int64_t>(all.panels.size());
  z.qkv = row * s.qkv_rows;
  z.heads = row * (a.num_attention_heads / plan.columns) * a.head_dim;
  z.gate_up = row * s.gate_up_rows;
  z.hidden = z.gate_up / 2;
  const int64_t tokens = s.sequences * s.tokens;
  z.statistic = (plan.columns > 1 && plan.stream == StreamCut::tokens ? tokens / plan.columns : tokens) * s.sum_bytes;
  return z;
}

// What rows add while a weight of so many elements, all rows', is used backward: gathered, and its gradient's sum.
int64_t rows_work(const TensorPlan& plan, const TensorShape& s, int64_t elements) {
  if (plan.rows == 1) return 0;
  return elements * (s.element_bytes + 2 * s.sum_bytes) + elements / plan.rows * s.sum_bytes;
}

}  // namespace

ActivationBytes tensor_activation_bytes(const Architecture& a, const TensorPlan& plan, const TensorShape& s,
                                        bool recompute, const AttentionBytes& attention) {
  const Sizes z = sizes_of(a, plan, s);
  ActivationBytes bytes;
  bytes.boundary = z.part;
  // Two norms' outputs and one sum of the stream, their statistics, gate and up, and their product.
  bytes.per_block = attention.kept + 3 * z.part + z.gate_up + z.hidden + 2 * z.statistic;
  bytes.head = z.part + z.statistic;

  // The loss: the last norm's output, two panels of all of it gathered, one of its gradient, and logits; of the panel
  // before, the sum that settles, or of the only one, in its turn.
  const int64_t tokens = s.sequences * s.tokens, vocabulary = (s.vocabulary + plan.columns - 1) / plan.columns;
  const int64_t logits =
      std::min((tokens + z.panels - 1) / z.panels, s.loss_chunk) * vocabulary * s.element_bytes;
  const int64_t weights = rows_work(plan, s, vocabulary * s.hidden);
  const int64_t settling = plan.columns > 1 ? z.panel_of(z.packed + z.part) : 0;
  const int64_t one_panel = z.part + z.gathered + (plan.columns > 1 ? z.summand - z.part : 0) + weights;
  const int64_t more_panels = z.part + z.panel_of(z.gathered + z.summand) + weights + logits +
                              (z.panels > 2 ? z.panel_of(z.gathered) + settling
                                            : std::max(z.panel_of(z.gathered), settling));
  const int64_t loss_work = z.panels == 1 ? one_panel + std::max(logits, settling) : more_panels;

  // A block's backward: down, the gates, their weights; then attention's, with all of the MLP freed. Of columns' tokens
  // in panels, those of one operand are put side by side.
  const auto side_by_side = [&](int64_t operand) {
    return z.panels > 1 && plan.stream == StreamCut::tokens ? z.panel_of(operand) : 0;
  };
  const int64_t moved = z.panel_of(z.gathered + z.summand + z.packed) + (z.panels > 1 ? z.panel_of(z.part) : 0);
  const int64_t arrived = z.panels > 1 ? z.panel_of(2 * z.gathered) : z.gathered;
  const int64_t down =
      z.part + arrived + z.hidden + side_by_side(z.hidden) + rows_work(plan, s, s.hidden * s.gate_up_rows / 2);
  const int64_t gates = 2 * z.part + z.gate_up;
  const int64_t gate_up =
      2 * z.part + moved + side_by_side(z.gate_up) - z.hidden + rows_work(plan, s, s.gate_up_rows * s.hidden);
  const int64_t mlp = std::max({down, gates, gate_up});
  const int64_t mlp_kept = z.gate_up + z.hidden + 2 * z.part + z.statistic;
  const int64_t core = z.part + 2 * z.qkv + 2 * z.heads + attention.working;
  const int64_t qkv = 2 * z.part + z.qkv + moved + side_by_side(z.qkv) + rows_work(plan, s, s.qkv_rows * s.hidden) -
                      attention.kept;
  const int64_t held = recompute ? 2 * z.part : 0;
  const int64_t attended = std::max(core, qkv) + held - mlp_kept;
  const int64_t block_work =
      std::max(mlp, attended) + (recompute ? bytes.per_block : 0) - bytes.head - bytes.boundary;
  bytes.working_peak = std::max(loss_work, block_work);
  bytes.kept = (recompute ? bytes.boundary : bytes.boundary + bytes.per_block) * a.num_hidden_layers + bytes.boundary +
               bytes.head;
  return bytes;
}

}  // namespace orthant
