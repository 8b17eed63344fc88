// What linear layers send under tensor parallelism, in words (elements) that a rank receives, averaged over the ranks;
// and what no arrangement can send less than. With T tokens, a = T width / (d q_r q_c) and w = in out / (q_r q_c):
//   output-stationary  forward (q_c-1) a_in  + (q_r-1) w   backward 2 (q_c-1) a_in + 2 (q_r-1) w
//   input-stationary   forward (q_c-1) a_out + (q_r-1) w   backward (q_c-1) a_out  + 2 (q_r-1) w, where it is split
//                                                                   (q_c-1) a_out more
//   summa              as output-stationary, whatever is larger
// and for the sum of weight gradients over depth, once a step, 2 (d-1)/d w. A bias sends nothing of its own: its
// gradient is summed with all others once a step, over the n ranks that see other tokens 2 (n-1)/n of what one holds.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "parallel/tensor/plan.h"

namespace orthant {

struct TensorWords {
  double forward = 0, backward = 0;
  double depth = 0;  // once a step, however many microbatches it has

  double total() const { return forward + backward + depth; }
  TensorWords& operator+=(const TensorWords& other);
};

/// One linear layer; whether its input or its output is the residual stream decides what Megatron's forms can move.
struct LinearShape {
  int64_t in = 0, out = 0;
  bool to_stream = false;  // its output is added to the residual stream; else its input is read from it
};

/// Of the layer on so many tokens of one replica, in the plan's form; of a share `split` of them backward is split.
TensorWords linear_words(const TensorPlan& plan, const LinearShape& linear, double tokens, double split = 0);
TensorWords linear_words(const TensorPlan& plan, std::span<const LinearShape> linears, double tokens, double split = 0);

/// The stationary matrix that the plan takes for the layer.
Stationary stationary_of(const TensorPlan& plan, const LinearShape& linear);

/// Words that some rank must receive for one product of [m, k] and [k, n] whose matrices are all spread over the ranks
/// once, whatever their memory (Al Daas et al. 2022, "Tight memory-independent parallel matrix multiplication
/// communication lower bounds", SPAA): D - (mn + mk + nk)/p.
double product_bound(double m, double n, double k, int ranks);

/// Every [rows, columns, depth] of so many ranks, in order; and, with one row and no depth, Megatron's two.
std::vector<TensorPlan> tensor_arrangements(int ranks);

}  // namespace orthant
