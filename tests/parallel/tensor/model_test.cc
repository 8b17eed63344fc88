// Whole models on tensor meshes against one device: loss and every gradient.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <atomic>
#include <mutex>

#include "model/transformer.h"
#include "parallel/tensor/run.h"
#include "parallel/tensor/traffic_plan.h"
#include "parallel/tensor/words_plan.h"
#include "tests/parallel/tensor/matrices.h"
#include "tests/support/biases.h"
#include "tests/support/relative_error.h"
#include "tests/support/tiny_model.h"

namespace orthant {
namespace {

struct ModelCase {
  TensorPlan plan;
  TinyOptions options = {};
  int64_t hidden = 24, intermediate = 40, vocab = 37;
  OutputLoss loss = {};
};
std::string name_of(const ModelCase& c) {
  const char* streams[] = {"width", "tokens", "uncut"};
  return fmt::format("{} x {} x {}, {}{}{}{}, cap {}, smoothing {}, panels of {} bytes", c.plan.rows, c.plan.columns,
                     c.plan.depth, streams[static_cast<int>(c.plan.stream)],
                     c.plan.form == ProductForm::summa ? ", summa" : "", c.options.tied ? ", tied" : "",
                     c.options.biases ? ", biases" : "", c.loss.softcap, c.loss.smoothing, c.plan.panel_bytes);
}

Architecture architecture_of(const ModelCase& c) {
  Architecture a = tiny_architecture(c.options);
  a.hidden_size = c.hidden;
  a.intermediate_size = c.intermediate;
  a.vocab_size = c.vocab;
  a.final_logit_softcapping = c.loss.softcap;
  return a;
}

Transformer::Options options_of(const ModelCase& c, bool recompute = false) {
  return {.recompute = recompute, .seed = 5, .label_smoothing = c.loss.smoothing, .z_loss = c.loss.z_weight};
}

bool contains(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

// How a parameter is cut, by its name.
Layout layout_of(const ParameterInfo& p, const TensorPlan& plan) {
  const bool to_stream = contains(p.name, "o_proj") || contains(p.name, "down_proj");
  if (p.shape.size() == 1) {
    Layout layout = whole(1);
    const bool between = contains(p.name, "bias") && !to_stream;
    if (between || plan.stream == StreamCut::width) layout.split[0] = {std::string(kColumn)};
    return layout;
  }
  return weight_layout(stationary_of(plan, {.in = p.shape[1], .out = p.shape[0], .to_stream = to_stream}));
}

std::vector<TensorWeight> wholes_of(const std::vector<ParameterInfo>& parameters, const std::vector<Layout>& layouts) {
  std::vector<TensorWeight> wholes;
  for (const auto& [first, end] : flat_layout(parameters).members) {
    TensorWeight& weight = wholes.emplace_back();
    for (size_t i = first; i < end; ++i) weight.out += parameters[i].shape[0];
    weight.in = parameters[first].shape.size() > 1 ? parameters[first].shape[1] : 1;
    const auto& rows = layouts[first].split[0];
    const bool by_output = !rows.empty() && rows[0] == kColumn;
    weight.stays = by_output ? Stationary::output : Stationary::input;
  }
  return wholes;
}

// What a rank holds of a model.
struct Held {
  std::vector<ParameterInfo> parameters;
  std::vector<Layout> layouts;
};
Held held_by(const Comm& comm, const Architecture& a, const TensorPlan& plan) {
  Held held{.parameters = parameter_table(a), .layouts = {}};
  for (ParameterInfo& p : held.parameters) {
    held.layouts.push_back(layout_of(p, plan));
    for (const Range& r : local_ranges(comm.mesh(), held.layouts.back(), p.shape, comm.rank()))
      p.held.emplace_back(r.begin, r.end);
  }
  return held;
}
Primitives primitives_of(Comm& comm, const Architecture& a, const TensorPlan& plan, const Held& held) {
  return tensor_primitives(comm, plan, wholes_of(held.parameters, held.layouts), a.hidden_size,
                           std::make_shared<AttentionCore>(local_attention()));
}

constexpr int64_t kBatch = 8, kLength = 12;

struct Oracle {
  double loss = 0;
  std::vector<at::Tensor> gradients;  // by parameter
};
Oracle one_device(const Architecture& a, const Microbatch& batch, const Transformer::Options& options) {
  Weights weights(parameter_table(a), at::kDouble);
  weights.initialize(7);
  draw_biases(weights);
  const Transformer model(a, weights, plain_primitives(), options);
  const at::Tensor loss = model.forward(batch);
  torch::autograd::backward({loss}, {});
  Oracle oracle{.loss = loss.item<double>(), .gradients = {}};
  for (size_t i = 0; i < weights.parameters().size(); ++i) oracle.gradients.push_back(weights.gradient(i).clone());
  return oracle;
}

// Some sequences of a batch.
Microbatch share_of(const Microbatch& batch, const Range& sequences) {
  Microbatch share = batch;
  for (at::Tensor* t : {&share.tokens_BT, &share.labels_BT, &share.positions_BT, &share.samples_B})
    *t = t->narrow(0, sequences.begin, sequences.size());
  return share;
}

TensorShape shape_of(const Architecture& a, const TensorPlan& plan, int64_t sequences, int column) {
  const auto part = [&](int64_t extent) { return shard(extent, plan.columns, column).size(); };
  return {.sequences = sequences,
          .tokens = kLength,
          .hidden = a.hidden_size,
          .vocabulary = a.vocab_size,
          .qkv_rows = (a.num_attention_heads + 2 * a.num_key_value_heads) / plan.columns * a.head_dim,
          .gate_up_rows = 2 * part(a.intermediate_size),
          .attention = a.num_attention_heads * a.head_dim,
          .intermediate = a.intermediate_size,
          .loss_chunk = loss_chunk_rows(shard(a.vocab_size, plan.columns, 0).size()),
          .element_bytes = 8,
          .sum_bytes = 8};
}

// What the plan says that a rank sends in a step, by axis and collective.
std::map<std::pair<std::string, std::string>, Traffic> planned(const Architecture& a, const TensorPlan& plan,
                                                               const TensorShape& shape, const Comm& comm,
                                                               bool recompute) {
  const TensorTraffic traffic = tensor_traffic(plan, shape, comm.mesh(), comm.rank());
  std::map<std::pair<std::string, std::string>, Traffic> all;
  const auto add = [&](const std::vector<TensorMessages>& messages, int64_t times) {
    for (const TensorMessages& m : messages) {
      Traffic& sum = all[{m.axis, m.collective}];
      sum.calls += m.calls * times;
      sum.bytes += m.bytes * times;
    }
  };
  add(traffic.block_forward, a.num_hidden_layers * (recompute ? 2 : 1));
  add(traffic.block_backward, a.num_hidden_layers);
  add(traffic.embedding_forward, 1);
  add(traffic.loss_forward, 1);
  add(traffic.loss_backward, 1);
  add(traffic.embedding_backward, 1);
  return all;
}

// The worst relative error of the loss and of any gradient, on any rank.
double worst_error(const ModelCase& c, bool recompute = false, bool drop_depth_sum = false) {
  const Architecture a = architecture_of(c);
  const Microbatch batch = random_batch(a, kBatch, kLength, 3);
  const Oracle oracle = one_device(a, batch, options_of(c));
  std::mutex mutex;
  double worst = 0;
  on_mesh(tensor_mesh(c.plan.rows, c.plan.columns, c.plan.depth), [&](Comm& comm) {
    const Held held = held_by(comm, a, c.plan);
    const auto& [parameters, layouts] = held;
    Weights weights(parameters, at::kDouble);
    weights.initialize(7);
    draw_biases(weights);
    const Transformer model(a, weights, primitives_of(comm, a, c.plan, held), options_of(c, recompute));
    const Range sequences = shard(kBatch, comm.group_size(kTokens), comm.position(kTokens));
    const at::Tensor own_loss = model.forward(share_of(batch, sequences));
    torch::autograd::backward({own_loss}, {});
    TensorShape shape = shape_of(a, c.plan, sequences.size(), comm.position(kColumns));
    shape.loss_statistics = c.loss.statistics();
    EXPECT_EQ(planned(a, c.plan, shape, comm, recompute), comm.traffic()) << name_of(c) << ", rank " << comm.rank();
    const at::NoGradGuard no_grad;
    at::Tensor loss = own_loss.detach().clone().view({1});
    comm.all_reduce(loss, kTokens).wait();
    double error = std::abs(loss.item<double>() - oracle.loss) / oracle.loss;
    for (size_t i = 0; i < parameters.size(); ++i) {
      Axes summed = {std::string(kRow), std::string(kDepth)};
      if (c.plan.stream == StreamCut::tokens) summed.emplace_back(kColumn);
      if (drop_depth_sum) std::erase(summed, kDepth);
      for (const auto& axes : layouts[i].split)
        for (const std::string& axis : axes) std::erase(summed, axis);
      at::Tensor gradient = weights.gradient(i).contiguous().clone();
      if (!summed.empty()) comm.all_reduce(gradient, summed).wait();
      const at::Tensor want = held_part(parameters[i], oracle.gradients[i]);
      const double norm = want.norm().item<double>();
      const double off = (gradient - want).norm().item<double>();
      error = std::max(error, std::isnan(off) ? INFINITY : want.numel() == 0 ? 0 : off / norm);
    }
    const std::lock_guard lock(mutex);
    worst = std::max(worst, error);
  });
  return worst;
}

std::vector<ModelCase> all_cases() {
  std::vector<ModelCase> all;
  const TinyOptions four{.kv_heads = 4}, tied{.tied = true}, dropped{.dropout = 0.1}, biased{.biases = true};
  const TinyOptions four_biased{.kv_heads = 4, .biases = true};
  for (const TinyOptions& options : {TinyOptions{}, tied, dropped, biased}) {
    for (const auto stream : {StreamCut::tokens, StreamCut::none, StreamCut::width})
      all.push_back({{.columns = 2, .stream = stream}, options});
    for (const auto form : {ProductForm::stationary, ProductForm::summa}) {
      for (const auto& [r, c, d] : {std::array{2, 2, 1}, {2, 2, 2}, {4, 1, 1}, {1, 1, 4}, {3, 2, 1}, {1, 2, 2}})
        all.push_back({{.rows = r, .columns = c, .depth = d, .form = form}, options});
    }
  }
  for (const TinyOptions& options : {four, four_biased}) {
    for (const auto form : {ProductForm::stationary, ProductForm::summa}) {
      all.push_back({{.rows = 2, .columns = 4, .form = form}, options, 26, 43, 41});  // nothing divides
      // A column without words.
      all.push_back({{.rows = 1, .columns = 4, .depth = 2, .form = form}, options, 26, 43, 3});
    }
    all.push_back({{.columns = 4, .stream = StreamCut::tokens}, options, 26, 43, 41});
  }
  return all;
}

TEST(TensorModel, EqualsOneDevice) {
  for (const ModelCase& c : all_cases()) EXPECT_LT(worst_error(c), 1e-12) << name_of(c);
}

TEST(TensorModel, OfOtherLossesEqualsOneDevice) {
  const TinyOptions four{.kv_heads = 4};
  for (const OutputLoss& loss : {OutputLoss{.softcap = 3}, OutputLoss{.smoothing = 0.1}, OutputLoss{.z_weight = 1e-3},
                                 OutputLoss{.softcap = 3, .smoothing = 0.1, .z_weight = 1e-3}}) {
    std::vector<ModelCase> cases;
    for (const auto stream : {StreamCut::tokens, StreamCut::none, StreamCut::width})
      cases.push_back({{.columns = 2, .stream = stream}, {.tied = true}});
    for (const auto form : {ProductForm::stationary, ProductForm::summa}) {
      cases.push_back({{.rows = 2, .columns = 2, .depth = 2, .form = form}});
      cases.push_back({{.rows = 2, .columns = 4, .form = form}, four, 26, 43, 41});
      cases.push_back({{.rows = 1, .columns = 4, .depth = 2, .form = form}, four, 26, 43, 3});  // a column has no words
    }
    for (ModelCase& c : cases) {
      c.loss = loss;
      EXPECT_LT(worst_error(c), 1e-12) << name_of(c);
    }
  }
}

// In panels of the stream: many, uneven ones, and two.
TEST(TensorModel, InPanelsEqualsOneDevice) {
  const TinyOptions four{.kv_heads = 4};
  for (const int64_t bytes : {1, 7000}) {
    std::vector<ModelCase> cases;
    for (const auto stream : {StreamCut::tokens, StreamCut::none, StreamCut::width}) {
      cases.push_back({{.columns = 2, .stream = stream, .panel_bytes = bytes}, {.dropout = 0.1, .biases = true}});
      cases.push_back({{.columns = 4, .stream = stream, .panel_bytes = bytes}, four, 26, 43, 41});
    }
    for (const auto& [r, c, d] : {std::array{2, 2, 1}, {2, 2, 2}, {3, 2, 1}, {4, 1, 1}})
      cases.push_back({{.rows = r, .columns = c, .depth = d, .panel_bytes = bytes}, {.tied = true}});
    for (const ModelCase& c : cases) EXPECT_LT(worst_error(c), 1e-12) << name_of(c);
  }
}

TEST(TensorModel, RecomputedEqualsOneDevice) {
  for (const auto form : {ProductForm::stationary, ProductForm::summa}) {
    const ModelCase c{{.rows = 2, .columns = 2, .depth = 2, .form = form}, {.dropout = 0.1, .biases = true}};
    EXPECT_LT(worst_error(c, true), 1e-12) << name_of(c);
  }
  EXPECT_LT(worst_error({{.columns = 2, .stream = StreamCut::tokens}, {.dropout = 0.1}}, true), 1e-12);
}

// No column has such a token, and without a check its row would be zeros.
TEST(TensorModel, RefusesATokenThatOneDeviceRefuses) {
  const Architecture a = tiny_architecture();
  const TensorPlan plan{.rows = 2, .columns = 2};
  const auto refusal = [](const Primitives& primitives, const Weights& weights, const at::Tensor& tokens) {
    const at::NoGradGuard no_grad;
    try {
      primitives.embedding(tokens, weights["model.embed_tokens.weight"]);
    } catch (const c10::IndexError& error) {
      return std::string(error.what_without_backtrace());
    }
    return std::string("taken");
  };
  for (const int64_t token : {int64_t{-1}, a.vocab_size, a.vocab_size - 1}) {
    at::Tensor tokens = at::zeros({2, 3}, at::kLong);
    tokens[1][2] = token;
    Weights whole(parameter_table(a), at::kDouble);
    const auto core = std::make_shared<AttentionCore>(local_attention());
    const std::string one = refusal(fused_primitives(core), whole, tokens);
    EXPECT_EQ(one == "taken", token == a.vocab_size - 1) << token;
    on_mesh(tensor_mesh(plan.rows, plan.columns, 1), [&](Comm& comm) {
      const Held held = held_by(comm, a, plan);
      const Weights weights(held.parameters, at::kDouble);
      EXPECT_EQ(refusal(primitives_of(comm, a, plan, held), weights, tokens), one) << token;
    });
  }
}

TEST(TensorModel, NeedsTheSumOverDepth) {
  EXPECT_GT(worst_error({{.rows = 2, .columns = 2, .depth = 2}}, false, true), kSeenInAGradient);
}

}  // namespace
}  // namespace orthant
