// A model over sharded sequences equals the plain one on one device: labels, dropout, positions, and no stray division
// of gradients, which residual layers can hide. Each planted mistake is a negative control.
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <mutex>

#include "comm/comm.h"
#include "comm/thread_ranks.h"
#include "model/attention_core.h"
#include "model/transformer.h"
#include "parallel/sequence/placement_plan.h"
#include "parallel/sequence/run.h"
#include "tests/support/tiny_model.h"
#include "tests/support/tiny_run.h"

namespace orthant::sequence_model_test {
namespace {

constexpr auto kZigzag = SequencePlacement::zigzag;
constexpr int64_t kTokens = 16;

Architecture three_layers(double dropout = 0) {
  Architecture a = tiny_architecture({.dropout = dropout});
  a.num_hidden_layers = 3;
  return a;
}

struct Gradients {
  double loss = 0;
  std::vector<at::Tensor> by_parameter;
  at::Tensor input;  // gradient of the embedded tokens
};

Gradients gradients_of(const Transformer& model, Weights& weights, const Microbatch& batch) {
  weights.gradients().zero_();
  weights.begin_gradients();
  at::Tensor x = model.embed(batch).detach().set_requires_grad(true);
  at::Tensor y = x;
  for (int layer = 0; layer < static_cast<int>(model.architecture().num_hidden_layers); ++layer)
    y = model.block(layer, y, batch);
  const at::Tensor loss = model.loss(y, batch);
  torch::autograd::backward({loss}, {});
  Gradients g{.loss = loss.item<double>(), .input = x.grad()};
  // The gradient of the embedding is left out: it is `input` summed by token.
  for (size_t p = 0; p < weights.parameters().size(); ++p) {
    if (weights.parameters()[p].layer >= 0) g.by_parameter.push_back(weights.gradient(p).clone());
  }
  return g;
}

Gradients on_one_device(const Architecture& a, const Microbatch& batch, bool fused = false) {
  Weights weights(parameter_table(a), at::kDouble);
  weights.initialize(7);
  return gradients_of(Transformer(a, weights, fused ? fused_primitives() : plain_primitives(), {.seed = 5}), weights,
                      batch);
}

struct Cut {
  int ulysses = 1, ring = 1;
  bool two_rings = false;
  int ranks() const { return ulysses * ring; }
};

/// Common mistakes. The tests must detect each of them.
struct Mistakes {
  bool divided_gradients = false;  // of q, k, v, by the number of ranks
  bool mean_of_means = false;      // every rank divides by its own labels
  bool local_positions = false;
  bool local_dropout = false;  // masks keyed by the index within the rank's shard
  bool local_labels = false;   // the next token of the rank's shard, not of the sequence
};

AttentionCore core_of(Comm& comm, const Cut& cut, bool divided) {
  const auto method = cut.two_rings ? SequenceMethod::ring_self_attention : SequenceMethod::ring_attention;
  AttentionCore core =
      sequence_attention(comm, {.ulysses = cut.ulysses, .ring = cut.ring, .placement = kZigzag, .method = method});
  if (divided) {
    core.backward = [backward = core.backward, n = cut.ranks()](const auto& dout, const auto& kept, const auto& batch,
                                                                const auto& shape) {
      const AttentionGradients g = backward(dout, kept, batch, shape);
      return AttentionGradients{g.dq_BHTD / n, g.dk_BKSD / n, g.dv_BKSD / n};
    };
  }
  return core;
}

Microbatch part_of(const Microbatch& all, const std::vector<int64_t>& positions, const Mistakes& mistakes) {
  Microbatch part = all;
  part.sequence_positions_T = at::tensor(positions, at::kLong);
  const auto here = [&](const at::Tensor& t) { return t.index_select(1, part.sequence_positions_T); };
  part.tokens_BT = here(all.tokens_BT), part.labels_BT = here(all.labels_BT),
  part.positions_BT = here(all.positions_BT);
  const at::Tensor local = at::arange(part.sequence_positions_T.numel());
  if (mistakes.local_positions) part.positions_BT = local.unsqueeze(0).expand_as(part.positions_BT).contiguous();
  if (mistakes.local_dropout) part.sequence_positions_T = local;
  if (mistakes.local_labels) {
    part.labels_BT = part.tokens_BT.roll(-1, 1);
    part.labels_BT.select(1, -1).fill_(-100);
  }
  return part;
}

/// Returns the gradients after the sum over ranks, with the input gradients of all ranks joined. `look` gets each
/// rank's own gradients and microbatch before the sum.
Gradients over_ranks(const Architecture& a, const Microbatch& batch, const Cut& cut, const Mistakes& mistakes = {},
                     const std::function<void(int rank, const Gradients& own, const Microbatch& part)>& look = {}) {
  std::vector<Gradients> all(static_cast<size_t>(cut.ranks()));
  const at::Tensor input = at::full({batch.tokens_BT.size(0), kTokens, a.hidden_size}, NAN, at::kDouble);
  std::mutex mutex;
  run_ranks(cut.ranks(), [&](Rendezvous rendezvous, int rank) {
    Comm comm(Mesh({{"ulysses", cut.ulysses}, {"ring", cut.ring}}), rank, rendezvous, {});
    const Axes both = {"ulysses", "ring"};
    Weights weights(parameter_table(a), at::kDouble);
    weights.initialize(7);
    const Transformer model(
        a, weights, fused_primitives(std::make_shared<AttentionCore>(core_of(comm, cut, mistakes.divided_gradients))),
        {.seed = 5});
    const auto positions =
        held_positions(kZigzag, kTokens, cut.ulysses, comm.position({"ulysses"}), cut.ring, comm.position({"ring"}));
    Microbatch part = part_of(batch, positions, mistakes);
    if (mistakes.mean_of_means) {
      const auto own = part.labels_BT.ge(0).sum().item<double>();
      part.loss_scale = 1.0 / (std::max(1.0, own) * cut.ranks());
    }
    Gradients g = gradients_of(model, weights, part);
    if (look) look(rank, g, part);
    for (at::Tensor& gradient : g.by_parameter) comm.all_reduce(gradient, both).wait();
    const at::Tensor loss = at::full({1}, g.loss, at::kDouble);
    comm.all_reduce(loss, both).wait();
    g.loss = loss.item<double>();
    const std::lock_guard lock(mutex);
    input.index_copy_(1, at::tensor(positions, at::kLong), g.input);
    all[static_cast<size_t>(rank)] = g;
  });
  // Ring Self-Attention, check 5: after the reduction, all ranks hold the same bits.
  for (const Gradients& g : all) {
    for (size_t p = 0; p < g.by_parameter.size(); ++p)
      EXPECT_TRUE(g.by_parameter[p].equal(all[0].by_parameter[p])) << p;
    EXPECT_EQ(g.loss, all[0].loss);
  }
  all[0].input = input;
  return all[0];
}

double worst(const Gradients& have, const Gradients& want) {
  double error = std::max(relative_error(have.loss, want.loss), relative_error(have.input, want.input));
  for (size_t p = 0; p < want.by_parameter.size(); ++p) {
    const double of_parameter = relative_error(have.by_parameter[p], want.by_parameter[p]);
    if (!(of_parameter <= error)) error = of_parameter;
  }
  return error;
}

Microbatch batch_of(const Architecture& a) { return random_batch(a, 2, kTokens, 3); }
const Cut kCuts[] = {{1, 2}, {1, 4}, {2, 2}, {4, 1}, {1, 4, true}, {2, 2, true}, {1, 8}, {1, 3}};

// Ring Self-Attention, check 4: every parameter and the input of three residual layers, by relative norm.
TEST(SequenceModel, NoStrayDivisionThroughResidualLayers) {
  const Architecture a = three_layers();
  const Microbatch batch = batch_of(a);
  const Gradients want = on_one_device(a, batch);
  for (const Cut& cut : kCuts) {
    EXPECT_LT(worst(over_ranks(a, batch, cut), want), 1e-12) << cut.ulysses << " " << cut.ring << " " << cut.two_rings;
  }
  // Control: attention divides its gradients by the number of ranks, a mistake that Adam would hide.
  const Gradients divided = over_ranks(a, batch, {1, 4}, {.divided_gradients = true});
  EXPECT_GT(worst(divided, want), 1e-2);
  EXPECT_GT(relative_error(divided.input, want.input), 1e-2);
  EXPECT_LT(relative_error(divided.loss, want.loss), 1e-12);  // the forward pass does not show it
}

// Ring Self-Attention, check 6; Unified Sequence Parallelism, check 10. Labels are on one rank only, or 5, 1, 0 and 2
// on the four ranks, or there is one label or none.
TEST(SequenceModel, UnevenLabelsAreSummedAndNotAveraged) {
  const Architecture a = three_layers();
  const Cut four{1, 4}, two_rings{1, 4, true};
  for (const auto& counts : {std::vector<int64_t>{8, 0, 0, 0}, {5, 1, 0, 2}, {0, 0, 0, 1}, {0, 0, 0, 0}}) {
    Microbatch batch = batch_of(a);
    const at::Tensor given = batch.labels_BT.clamp_min(0);
    batch.labels_BT = at::full_like(given, -100);
    int64_t sum = 0;
    for (int r = 0; r < 4; ++r) {
      const auto positions = ring_positions(kZigzag, kTokens, 4, r);
      for (int64_t i = 0; i < counts[static_cast<size_t>(r)]; ++i, ++sum) {
        const int64_t b = i / static_cast<int64_t>(positions.size()),
                      t = positions[static_cast<size_t>(i) % positions.size()];
        batch.labels_BT[b][t] = given[b][t];
      }
    }
    batch.loss_scale = 1.0 / static_cast<double>(std::max<int64_t>(1, sum));
    const Gradients have = over_ranks(a, batch, four);
    if (sum == 0) {
      EXPECT_EQ(have.loss, 0);
      for (const at::Tensor& g : have.by_parameter) EXPECT_TRUE(g.eq(0).all().item<bool>());
      continue;
    }
    const Gradients want = on_one_device(a, batch);
    EXPECT_TRUE(std::isfinite(have.loss));
    EXPECT_LT(worst(have, want), 1e-12);
    EXPECT_LT(worst(over_ranks(a, batch, two_rings), want), 1e-12);
    // Control: a mean of the ranks' means differs.
    EXPECT_GT(worst(over_ranks(a, batch, four, {.mean_of_means = true}), want), 1e-2);
  }
}

// Ring Self-Attention, check 9, for hidden dropout, which is keyed by the global position. Attention probabilities are
// never dropped.
TEST(SequenceModel, DropoutIsThatOfOneDevice) {
  const Architecture a = three_layers(0.1);
  const Microbatch batch = batch_of(a);
  const Gradients want = on_one_device(a, batch);
  EXPECT_GT(worst(on_one_device(three_layers(), batch), want), 1e-2) << "nothing is dropped";
  for (const Cut& cut : kCuts)
    EXPECT_LT(worst(over_ranks(a, batch, cut), want), 1e-12) << cut.ulysses << " " << cut.ring;
  // Control: keyed by the index within a rank's shard, all ranks drop the same elements, and not those of one device.
  EXPECT_GT(worst(over_ranks(a, batch, {1, 4}, {.local_dropout = true}), want), 1e-2);

  // The masks of two shards differ, and the rate is 0.1 within four standard deviations.
  const at::Tensor ones = at::ones({4, 64, 128}, at::kDouble);
  Microbatch long_batch;
  long_batch.samples_B = at::arange(4), long_batch.sequence_length = 1024, long_batch.step = 1;
  std::vector<at::Tensor> masks;
  for (const int64_t begin : {0, 64, 512}) {
    long_batch.sequence_positions_T = at::arange(begin, begin + 64);
    masks.push_back(fused_primitives().dropout(ones, long_batch, {.probability = 0.1, .seed = 5, .site = 1}).eq(0));
    const double n = 4 * 64 * 128, sigma = std::sqrt(0.1 * 0.9 / n);
    EXPECT_NEAR(masks.back().sum().item<double>() / n, 0.1, 4 * sigma);
  }
  for (const size_t other : {1, 2}) {
    const double alike = masks[0].eq(masks[other]).to(at::kDouble).mean().item<double>();
    EXPECT_NEAR(alike, 0.82, 0.02);  // independent masks: 0.9^2 + 0.1^2
  }
}

// Ring Self-Attention, check 10: the positions of each rank are global, whether they turn queries and keys or choose a
// learned vector.
class Positions : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(SequenceModel, Positions, ::testing::Values("rotary", "learned"),
                         [](const auto& instance) { return std::string(instance.param); });

TEST_P(Positions, AreGlobal) {
  Architecture a = three_layers();
  a.positions = GetParam();
  const Microbatch batch = batch_of(a);
  const Gradients want = on_one_device(a, batch);
  // A rank computes gradients of its own embeddings only. Contributions of other ranks' tokens arrive through
  // attention.
  over_ranks(a, batch, {1, 4}, {}, [&](int rank, const Gradients& own, const Microbatch& part) {
    const auto positions = ring_positions(kZigzag, kTokens, 4, rank);
    EXPECT_EQ(own.input.size(1), static_cast<int64_t>(positions.size()));
    EXPECT_TRUE(part.positions_BT[0].equal(at::tensor(positions, at::kLong)));
  });
  for (const Cut& cut : {Cut{1, 4}, Cut{4, 1}, Cut{2, 2}, Cut{1, 4, true}}) {
    EXPECT_LT(worst(over_ranks(a, batch, cut), want), 1e-12) << cut.ulysses << " " << cut.ring;
    EXPECT_GT(worst(over_ranks(a, batch, cut, {.local_positions = true}), want), 1e-2);
  }
}

// Check 10, its end: the label of a shard's last token is the first token of another shard.
TEST(SequenceModel, LabelsCrossTheBordersOfParts) {
  const Architecture a = three_layers();
  Microbatch batch = batch_of(a);
  batch.labels_BT = batch.tokens_BT.roll(-1, 1);
  batch.labels_BT.select(1, -1).fill_(-100);
  batch.loss_scale = 1.0 / static_cast<double>(batch.labels_BT.ge(0).sum().item<int64_t>());
  const Gradients want = on_one_device(a, batch);
  for (const Cut& cut : {Cut{1, 4}, Cut{2, 2}, Cut{4, 1}, Cut{1, 4, true}}) {
    EXPECT_LT(worst(over_ranks(a, batch, cut), want), 1e-12) << cut.ulysses << " " << cut.ring;
    // Control: labels shifted after sharding.
    EXPECT_GT(worst(over_ranks(a, batch, cut, {.local_labels = true}), want), 1e-2);
  }
}

}  // namespace
}  // namespace orthant::sequence_model_test
