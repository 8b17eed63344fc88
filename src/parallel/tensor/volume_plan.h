// Communication volume of linear layers under tensor parallelism, in elements received, averaged over ranks; and the
// lower bound that no arrangement can beat. T tokens; a = T width / (d q_r q_c); w = in out / (q_r q_c).
//   output-stationary  forward (q_c-1) a_in  + (q_r-1) w   backward 2 (q_c-1) a_in + 2 (q_r-1) w
//   input-stationary   forward (q_c-1) a_out + (q_r-1) w   backward (q_c-1) a_out  + 2 (q_r-1) w; a split backward
//                                                                   receives (q_c-1) a_out more
//   summa              the output-stationary formulas, whichever of in and out is larger
// The sum of weight gradients over depth adds 2 (d-1)/d w, once a step. A bias adds no message of its own: its gradient
// is summed with all others once a step over the n ranks that have other tokens, 2 (n-1)/n of a rank's elements.
// Columns that do not divide the key heads also exchange parts of keys and values: see key_heads_plan.h.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/block_plan.h"
#include "parallel/tensor/plan.h"

namespace orthant {

/// Elements received, averaged over ranks; forward and backward for the given tokens, depth per step.
struct TensorVolume {
  double forward = 0, backward = 0;
  double depth = 0;  // once a step, for any number of microbatches

  double total() const { return forward + backward + depth; }
  TensorVolume& operator+=(const TensorVolume& other);
};

/// One linear layer. Megatron's forms can shard only the operand that is the residual stream: input or output.
struct LinearShape {
  int64_t in = 0, out = 0;
  bool to_stream = false;  // its output is added to the residual stream; otherwise its input is read from it
  AttentionHeads heads = {};  // of the attention that reads its output
};
/// The shape of a linear operation of a block; and of all of them, in order.
LinearShape linear_shape(const Operation& linear);
std::vector<LinearShape> linear_shapes(const std::vector<Operation>& block);

/// Elements received for one layer, or for several, on `tokens` tokens of one replica, in the plan's form. split:
/// fraction of the tokens whose backward is split into I and W.
TensorVolume count_received_elements(const TensorPlan& plan, const LinearShape& linear, double tokens,
                                     double split = 0);
TensorVolume count_received_elements(const TensorPlan& plan, std::span<const LinearShape> linears, double tokens,
                                     double split = 0);

/// The operand that the plan keeps stationary for the layer.
Stationary stationary_of(const TensorPlan& plan, const LinearShape& linear);

/// Lower bound of the elements that some rank receives for one product [m, k] [k, n], if all three matrices are sharded
/// over the ranks without replicas. It holds for any memory size: D - (mn + mk + nk)/p (Al Daas et al. 2022, "Tight
/// memory-independent parallel matrix multiplication communication lower bounds", SPAA).
double product_bound(double m, double n, double k, int ranks);

/// All meshes [rows, columns, depth] of this many ranks, in order, after Megatron's two forms of one row and depth 1.
std::vector<TensorPlan> tensor_arrangements(int ranks);

}  // namespace orthant
