// Compares a full model on a tensor mesh with the same model on one device: the loss and every gradient. The bytes sent
// must equal the plan's.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <mutex>

#include "base/labels.h"
#include "model/transformer.h"
#include "parallel/tensor/run.h"
#include "parallel/tensor/traffic_plan.h"
#include "parallel/tensor/volume_plan.h"
#include "tests/parallel/tensor/matrices.h"
#include "tests/support/biases.h"
#include "tests/support/relative_error.h"
#include "tests/support/tiny_model.h"

namespace orthant {

struct ModelCase {
  TensorPlan plan;
  TinyOptions options = {};
  int64_t hidden = 24, intermediate = 40, vocab = 37;
  OutputLoss loss = {};
  double head = 1;              // factor of the output layer's weights
  bool scattered = false;       // some labels of every sequence are ignored
};
inline std::string name_of(const ModelCase& c) {
  const char* streams[] = {"width", "tokens", "uncut"};
  return fmt::format("{} x {} x {}, {}{}{}{}, cap {}, smoothing {}, panels of {} bytes", c.plan.rows, c.plan.columns,
                     c.plan.depth, streams[static_cast<int>(c.plan.stream)],
                     c.plan.form == ProductForm::summa ? ", summa" : "", c.options.tied ? ", tied" : "",
                     c.options.biases ? ", biases" : "", c.loss.softcap, c.loss.smoothing, c.plan.panel_bytes);
}

inline Architecture make_architecture(const ModelCase& c) {
  Architecture a = tiny_architecture(c.options);
  a.hidden_size = c.hidden;
  a.intermediate_size = c.intermediate;
  a.vocab_size = c.vocab;
  a.final_logit_softcapping = c.loss.softcap;
  return a;
}

inline Transformer::Options options_of(const ModelCase& c, const Recomputation& recompute = {}) {
  return {.recompute = recompute, .seed = 5, .label_smoothing = c.loss.smoothing, .z_loss = c.loss.z_weight};
}

inline bool contains(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

// The layout of a parameter, by its name.
inline Layout layout_of(const ParameterInfo& p, const TensorPlan& plan) {
  const bool to_stream = contains(p.name, "o_proj") || contains(p.name, "down_proj");
  if (p.shape.size() == 1) {
    Layout layout = unsharded_layout(1);
    if (p.role == ParameterRole::head_gain) return layout;
    const bool between = contains(p.name, "bias") && !to_stream;
    if (between || plan.stream == StreamSharding::width) layout.split[0] = {kColumn};
    return layout;
  }
  return weight_layout(stationary_of(plan, {.in = p.shape[1], .out = p.shape[0], .to_stream = to_stream}));
}

inline std::vector<UnshardedWeight> unsharded_weights_of(const std::vector<ParameterInfo>& parameters,
                                                         const std::vector<Layout>& layouts, const Architecture& a) {
  std::vector<UnshardedWeight> unsharded_weights;
  for (const auto& [first, end] : flat_layout(parameters).members) {
    UnshardedWeight& weight = unsharded_weights.emplace_back();
    for (size_t i = first; i < end; ++i) weight.out += parameters[i].shape[0];
    weight.in = parameters[first].shape.size() > 1 ? parameters[first].shape[1] : 1;
    weight.heads = heads_made_by(a, parameters[first]);
    const auto& rows = layouts[first].split[0];
    const bool by_output = !rows.empty() && rows[0] == kColumn;
    weight.stationary = by_output ? Stationary::output : Stationary::input;
  }
  return unsharded_weights;
}

// The parameters of a model with the ranges that a rank holds, and their layouts.
struct Held {
  std::vector<ParameterInfo> parameters;
  std::vector<Layout> layouts;
};
inline Held held_by_rank(const Comm& comm, const Architecture& a, const TensorPlan& plan) {
  Held held{.parameters = parameter_table(a), .layouts = {}};
  for (ParameterInfo& p : held.parameters) {
    held.layouts.push_back(layout_of(p, plan));
    for (const Range& r : local_ranges(comm.mesh(), held.layouts.back(), p.shape, comm.rank()))
      p.held.emplace_back(r.begin, r.end);
  }
  return held;
}
inline Primitives primitives_of(Comm& comm, const Architecture& a, const TensorPlan& plan, const Held& held) {
  return tensor_primitives(comm, plan, unsharded_weights_of(held.parameters, held.layouts, a), a.hidden_size,
                           std::make_shared<AttentionCore>(local_attention()));
}

inline constexpr int64_t kBatch = 8, kLength = 12;

inline void draw_weights(const ModelCase& c, Weights& weights) {
  weights.initialize(7);
  draw_biases(weights);
  for (size_t i = 0; i < weights.parameters().size(); ++i)
    if (contains(weights.parameters()[i].name, "lm_head")) weights.master(i).mul_(c.head);
  weights.publish();
}

inline Microbatch batch_of(const ModelCase& c, const Architecture& a) {
  Microbatch batch = random_batch(a, kBatch, kLength, 3);
  if (c.scattered) batch.labels_BT.masked_fill_(batch.tokens_BT.remainder(3).eq(0), kIgnoredLabel);
  return batch;
}

struct Oracle {
  double loss = 0;
  std::vector<at::Tensor> gradients;  // by parameter
};
// Loss and gradients of plain primitives on one device.
inline Oracle one_device(const ModelCase& c, const Architecture& a, const Microbatch& batch) {
  Weights weights(parameter_table(a), at::kDouble);
  draw_weights(c, weights);
  const Transformer model(a, weights, plain_primitives(), options_of(c));
  const at::Tensor loss = model.forward(batch);
  torch::autograd::backward({loss}, {});
  Oracle oracle{.loss = loss.item<double>(), .gradients = {}};
  for (size_t i = 0; i < weights.parameters().size(); ++i) oracle.gradients.push_back(weights.gradient(i).clone());
  return oracle;
}

// The given sequences of a batch.
inline Microbatch share_of(const Microbatch& batch, const Range& sequences) {
  Microbatch share = batch;
  for (at::Tensor* t : {&share.tokens_BT, &share.labels_BT, &share.positions_BT, &share.samples_B})
    *t = t->narrow(0, sequences.begin, sequences.size());
  return share;
}

inline TensorShape shape_of(const Architecture& a, const TensorPlan& plan, int64_t sequences, int column,
                            const Recomputation& recompute) {
  return {.sequences = sequences,
          .tokens = kLength,
          .hidden = a.hidden_size,
          .vocabulary = a.vocab_size,
          .block = column_operations(block_operations(a), plan, column),
          .recomputed = recompute.ranges(block_operations(a)),
          .loss_chunk = loss_chunk_rows(shard(a.vocab_size, plan.columns, 0).size(), false),
          .element_bytes = 8,
          .sum_bytes = 8};
}

// The planned traffic of a rank in one step, by axis and collective.
inline std::map<std::pair<std::string, std::string>, Traffic> planned(const Architecture& a, const TensorPlan& plan,
                                                               const TensorShape& shape, const Comm& comm,
                                                               const Recomputation& recompute) {
  const TensorTraffic traffic = tensor_traffic(plan, shape, comm.mesh(), comm.rank());
  std::map<std::pair<std::string, std::string>, Traffic> all;
  const auto add = [&](const std::vector<Messages>& messages, int64_t times) {
    for (const Messages& m : messages) {
      Traffic& sum = all[{m.axis, m.collective}];
      sum.calls += m.calls * times;
      sum.bytes += times * m.bytes;
    }
  };
  add(traffic.block_forward, a.num_hidden_layers);
  add(traffic.block_repeated, recompute.num_layers(0, a.num_hidden_layers));
  add(traffic.block_backward, a.num_hidden_layers);
  add(traffic.embedding_forward, 1);
  add(traffic.loss_forward, 1);
  add(traffic.loss_backward, 1);
  add(traffic.embedding_backward, 1);
  return all;
}

// The largest relative error of the loss and of the gradients on any rank. drop_depth_sum is the control: it leaves out
// the sum of gradients over depth.
inline double worst_error(const ModelCase& c, const Recomputation& recompute = {}, bool drop_depth_sum = false) {
  const Architecture a = make_architecture(c);
  const Microbatch batch = batch_of(c, a);
  const Oracle oracle = one_device(c, a, batch);
  std::mutex mutex;
  double worst = 0;
  on_mesh(tensor_mesh(c.plan.rows, c.plan.columns, c.plan.depth), [&](Comm& comm) {
    const Held held = held_by_rank(comm, a, c.plan);
    const auto& [parameters, layouts] = held;
    Weights weights(parameters, at::kDouble);
    draw_weights(c, weights);
    const Transformer model(a, weights, primitives_of(comm, a, c.plan, held), options_of(c, recompute));
    const Range sequences = shard(kBatch, comm.group_size(kTokens), comm.position(kTokens));
    const at::Tensor own_loss = model.forward(share_of(batch, sequences));
    torch::autograd::backward({own_loss}, {});
    TensorShape shape = shape_of(a, c.plan, sequences.size(), comm.position(kColumns), recompute);
    shape.loss_statistics = c.loss.statistics();
    EXPECT_EQ(planned(a, c.plan, shape, comm, recompute), comm.traffic()) << name_of(c) << ", rank " << comm.rank();
    const at::NoGradGuard no_grad;
    at::Tensor loss = own_loss.detach().clone().view({1});
    comm.all_reduce(loss, kTokens).wait();
    double error = std::abs(loss.item<double>() - oracle.loss) / oracle.loss;
    for (size_t i = 0; i < parameters.size(); ++i) {
      Axes summed = {kRow, kDepth};
      const bool of_heads = parameters[i].role == ParameterRole::head_gain;  // heads of each column use it
      if (of_heads || c.plan.stream == StreamSharding::tokens) summed.emplace_back(kColumn);
      if (drop_depth_sum) std::erase(summed, kDepth);
      for (const auto& axes : layouts[i].split)
        for (const std::string& axis : axes) std::erase(summed, axis);
      at::Tensor gradient = weights.gradient(i).contiguous().clone();
      if (!summed.empty()) comm.all_reduce(gradient, summed).wait();
      const at::Tensor want = shard_of(parameters[i], oracle.gradients[i]);
      const double norm = want.norm().item<double>();
      const double off = (gradient - want).norm().item<double>();
      error = std::max(error, std::isnan(off) ? INFINITY : want.numel() == 0 ? 0 : off / norm);
    }
    const std::lock_guard lock(mutex);
    worst = std::max(worst, error);
  });
  return worst;
}

}  // namespace orthant
