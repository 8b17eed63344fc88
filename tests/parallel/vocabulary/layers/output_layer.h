// Runs the output layer with the vocabulary sharded over thread ranks, and its oracle: one device, autograd and
// float64.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <mutex>
#include <string>
#include <vector>

#include "base/labels.h"
#include "comm/thread_ranks.h"
#include "parallel/vocabulary/output.h"
#include "tests/support/reference_values.h"
#include "tests/support/relative_error.h"

namespace orthant {

inline const std::vector<std::string> kAlgorithms = {"naive", "algorithm_1", "algorithm_2"};

/// The inputs of the layer. The table w_VC may have padding rows after the vocabulary.
struct OutputInputs {
  at::Tensor x_NC, w_VC, labels_N, weights_N;
  double loss_scale = 1;
  int64_t vocabulary = 0;
};

/// Random inputs, with every fifth label ignored and random weights of tokens.
inline OutputInputs output_inputs(int64_t N = 64, int64_t C = 32, int64_t V = 1003) {
  OutputInputs in{.x_NC = reference_values({N, C}, 1) * 0.5, .w_VC = reference_values({V, C}, 2) * 0.25,
                  .labels_N = (at::arange(N) * 7919).remainder(V), .weights_N = reference_values({N}, 3).abs(),
                  .loss_scale = 1.0 / static_cast<double>(N), .vocabulary = V};
  in.labels_N.slice(0, 0, N, 5).fill_(kIgnoredLabel);
  return in;
}
/// Pads the table to `rows` rows with values so large that an error in their use shows.
inline OutputInputs padded(OutputInputs in, int64_t rows) {
  in.w_VC = at::cat({in.w_VC, at::full({rows - in.w_VC.size(0), in.w_VC.size(1)}, 3.0, in.w_VC.options())});
  return in;
}

struct OutputResult {
  double loss = 0;
  at::Tensor dx_NC, dw_VC;
  std::vector<double> losses = {};         // by rank
  std::vector<TrafficTable> traffic = {};  // by rank
};

inline OutputResult one_device(const OutputInputs& in, const OutputLoss& loss = {}) {
  const at::Tensor x = in.x_NC.to(at::kDouble).detach().clone().requires_grad_();
  const at::Tensor w = in.w_VC.to(at::kDouble).detach().clone().requires_grad_();
  at::Tensor z = x.matmul(w.narrow(0, 0, in.vocabulary).t());
  if (loss.softcap > 0) z = loss.softcap * (z / loss.softcap).tanh();
  // log_softmax keeps the digits of the loss for large logits; a log of the sum minus a logit would cancel them.
  const at::Tensor valid = in.labels_N.ne(kIgnoredLabel), logs = z.log_softmax(1);
  const at::Tensor picked = logs.gather(1, in.labels_N.clamp_min(0).unsqueeze(1)).squeeze(1);
  at::Tensor each = -(1 - loss.smoothing) * picked - loss.smoothing * logs.mean(1);
  if (loss.z_weight > 0) each = each + loss.z_weight * z.logsumexp(1).square();
  const at::Tensor factors = in.weights_N * in.loss_scale;
  const at::Tensor total = at::where(valid, each * factors, at::zeros_like(each)).sum();
  total.backward();
  return {.loss = total.item<double>(), .dx_NC = x.grad(), .dw_VC = w.grad()};
}

/// Slices of ceil(V/p) rows. The last ones may be shorter or empty.
inline std::vector<Range> even_slices(int64_t rows, int ranks) {
  std::vector<Range> slices;
  const int64_t each = (rows + ranks - 1) / ranks;
  for (int rank = 0; rank < ranks; ++rank) {
    slices.push_back({std::min(rank * each, rows), std::min((rank + 1) * each, rows)});
  }
  return slices;
}

struct OutputCase {
  std::string algorithm;
  std::vector<Range> slices;  // by rank
  OutputLoss loss = {};
  at::ScalarType type = at::kDouble;
  int microbatches = 2, root = 0;
  int shift = 0;  // the control: each rank takes its rows for those `shift` further on
};

/// Runs all microbatches of one rank and returns their loss. On odd ranks S runs one microbatch ahead of T; on even
/// ranks it does not.
inline double run_output(OutputLayer& layer, const OutputCase& c, const OutputInputs& in, int rank, at::Tensor dx_NC) {
  const bool root = rank == c.root, one_barrier = c.algorithm == "algorithm_2";
  const auto part = [&](const at::Tensor& t, int microbatch) {
    const Range tokens = shard(in.x_NC.size(0), c.microbatches, microbatch);
    return t.narrow(0, tokens.begin, tokens.size());
  };
  const auto take = [&](int microbatch) { part(dx_NC, microbatch).copy_(layer.take_input_gradient(microbatch)); };
  const auto rest = [&](int microbatch) {
    if (c.algorithm == "naive") layer.Z(microbatch);
    if (root && one_barrier) take(microbatch);
    layer.T(microbatch);
    if (root && !one_barrier) take(microbatch);
  };
  const int ahead = rank % 2;
  for (int microbatch = 0; microbatch < c.microbatches; ++microbatch) {
    const at::Tensor x = part(in.x_NC, microbatch).to(c.type);
    layer.broadcast_input(microbatch, root ? x : at::full_like(x, NAN),
                          {part(in.labels_N, microbatch), part(in.weights_N, microbatch), in.loss_scale}, c.loss);
  }
  for (int microbatch = 0; microbatch < c.microbatches + ahead; ++microbatch) {
    if (microbatch < c.microbatches) layer.S(microbatch);
    if (microbatch >= ahead) rest(microbatch - ahead);
  }
  return layer.finish().item<double>();
}

inline OutputResult over_ranks(const OutputCase& c, const OutputInputs& in) {
  const auto ranks = static_cast<int>(c.slices.size());
  OutputResult result{.dx_NC = at::zeros(in.x_NC.sizes(), in.x_NC.options().dtype(c.type)),
                      .losses = std::vector<double>(c.slices.size()),
                      .traffic = std::vector<TrafficTable>(c.slices.size())};
  std::vector<at::Tensor> gradients(c.slices.size());
  run_ranks(ranks, [&](Rendezvous rendezvous, int rank) {
    Comm comm(Mesh({{"pipeline", ranks}}), rank, rendezvous);
    const auto r = static_cast<size_t>(rank);
    const Range rows = c.slices[r];
    const at::ScalarType master = c.type == at::kDouble ? at::kDouble : at::kFloat;
    const Weight head{.value = in.w_VC.narrow(0, rows.begin, rows.size()).to(c.type, false, true).requires_grad_(),
                      .gradient = at::full({rows.size(), in.w_VC.size(1)}, NAN, master)};
    OutputLayer layer(comm,
                      {.algorithm = c.algorithm,
                       .slice = {.rows = {rows.begin + c.shift, rows.end + c.shift}, .vocabulary = in.vocabulary},
                       .axes = kOverPipeline,
                       .root = c.root},
                      head);
    result.losses[r] = run_output(layer, c, in, rank, result.dx_NC);
    gradients[r] = head.gradient;
    result.traffic[r] = comm.traffic();
  });
  result.loss = result.losses[0];
  result.dw_VC = at::cat(gradients);
  return result;
}

/// The largest absolute difference of an element, divided by the largest element of b or by 1, whichever is larger. It
/// is absolute for the gradients of these tests, which are below 1. Infinite if a difference is NaN.
inline double largest_error(const at::Tensor& a, const at::Tensor& b) {
  if (b.numel() == 0) return 0;
  const at::Tensor wide = b.to(at::kDouble);
  const double error = (a.to(at::kDouble) - wide).abs().max().item<double>();
  return std::isnan(error) ? INFINITY : error / std::max(1.0, wide.abs().max().item<double>());
}
inline double largest_error(const OutputResult& have, const OutputResult& want) {
  const double loss = std::abs(have.loss - want.loss) / std::max(1.0, std::abs(want.loss));
  const double gradients = std::max(largest_error(have.dx_NC, want.dx_NC), largest_error(have.dw_VC, want.dw_VC));
  return std::isnan(loss) ? INFINITY : std::max(loss, gradients);
}

}  // namespace orthant
