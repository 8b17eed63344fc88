// Linformer over a ring equals its definition in plain ATen and autograd: outputs, gradients, and bytes that do not
// grow with the sequence length. The controls are typical errors, which must exceed 1e-3.
#include "parallel/sequence/linformer/run.h"

#include <torch/csrc/autograd/autograd.h>

#include "model/linformer.h"
#include "tests/parallel/sequence/sharded_attention.h"

namespace orthant::linformer_test {
namespace {

constexpr int64_t kLength = 5;  // K_p: summary rows of a sequence

struct Case {
  int ring = 1;
  int64_t tokens = 32, heads = 3, key_heads = 3;
  std::vector<int64_t> lengths = {};  // valid tokens of each sequence; empty: no padding
};

struct Result {
  at::Tensor out, dq, dk, dv, de, df;
  std::vector<at::Tensor> all() const { return {out, dq, dk, dv, de, df}; }
};

at::Tensor projection(int64_t tokens, uint32_t seed) { return reference_values({tokens, kLength}, seed) * 0.5; }

Result by_definition(const Case& c) {
  auto leaf = [](const at::Tensor& t) { return t.clone().set_requires_grad(true); };
  const at::Tensor q = leaf(reference_values({2, c.heads, c.tokens, 4}, 1));
  const at::Tensor k = leaf(reference_values({2, c.key_heads, c.tokens, 4}, 2));
  const at::Tensor v = leaf(reference_values({2, c.key_heads, c.tokens, 4}, 3));
  const at::Tensor e = leaf(projection(c.tokens, 5)), f = leaf(projection(c.tokens, 6));
  at::Tensor present = at::ones({2, 1, c.tokens, 1}, at::kDouble);
  for (size_t b = 0; b < c.lengths.size(); ++b) {
    present[static_cast<int64_t>(b)].narrow(1, c.lengths[b], c.tokens - c.lengths[b]).zero_();
  }
  const auto summary = [&](const at::Tensor& x, const at::Tensor& by) {
    return at::einsum("bktd,tp->bkpd", {x * present, by}).repeat_interleave(c.heads / c.key_heads, 1);
  };
  const at::Tensor scores = at::matmul(q, summary(k, e).transpose(-1, -2)) * 0.5;
  const at::Tensor out = at::matmul(scores.softmax(-1), summary(v, f));
  out.backward(reference_values(out.sizes(), 4));
  return {out.detach(), q.grad(), k.grad(), v.grad(), e.grad(), f.grad()};
}

using MakeCore = std::function<AttentionCore(Comm&)>;
AttentionCore right(Comm& comm) { return linformer(comm, kOverRing); }

/// Runs the core on all ranks and joins their shards. reduce_projections is an error that also sums dE and dF over the
/// ring.
Result on_ranks(const Case& c, const MakeCore& make = right, const std::function<void(Comm&)>& look = {},
                bool reduce_projections = false) {
  const Result like = by_definition(c);
  Result all = {at::full_like(like.out, NAN), at::full_like(like.dq, NAN), at::full_like(like.dk, NAN),
         at::full_like(like.dv, NAN), at::full_like(like.de, NAN), at::full_like(like.df, NAN)};
  std::mutex mutex;
  run_ranks(c.ring, [&](Rendezvous rendezvous, int rank) {
    Comm comm(Mesh({{"ring", c.ring}}), rank, rendezvous, {});
    const AttentionCore core = make(comm);
    const auto positions = ring_positions(SequencePlacement::contiguous, c.tokens, c.ring, rank);
    const auto first = positions.front(), count = static_cast<int64_t>(positions.size());
    const auto here = [&](const at::Tensor& t) { return t.narrow(2, first, count).contiguous(); };
    const auto weight = [&](uint32_t seed) {
      Weight w{.value = projection(c.tokens, seed).narrow(0, first, count).contiguous().set_requires_grad(true)};
      w.gradient = at::full_like(w.value, NAN).detach();
      return w;
    };
    const Weight e = weight(5), f = weight(6);
    Microbatch batch;
    batch.sequence_length = c.tokens;
    if (!c.lengths.empty())
      batch.packing = std::make_shared<Packing>(Packing{.document_starts = {}, .lengths = c.lengths});
    const AttentionShape shape{.heads = c.heads, .kv_heads = c.key_heads, .head_dim = 4, .cos_PD = {}, .sin_PD = {},
                               .rule = {.causal = false}, .linformer_k = &e, .linformer_v = &f};
    const auto kept =
        core.forward(here(reference_values(like.dq.sizes(), 1)), here(reference_values(like.dk.sizes(), 2)),
                     here(reference_values(like.dk.sizes(), 3)), batch, shape);
    const AttentionGradients g = core.backward(here(reference_values(like.out.sizes(), 4)), kept, batch, shape);
    if (reduce_projections) {
      for (const Weight* w : {&e, &f}) comm.all_reduce(w->gradient, kOverRing).wait();
    }
    const std::lock_guard lock(mutex);
    all.out.narrow(2, first, count).copy_(kept[0]);
    all.dq.narrow(2, first, count).copy_(g.dq_BHTD);
    all.dk.narrow(2, first, count).copy_(g.dk_BKSD);
    all.dv.narrow(2, first, count).copy_(g.dv_BKSD);
    all.de.narrow(0, first, count).copy_(e.gradient);
    all.df.narrow(0, first, count).copy_(f.gradient);
    if (look) look(comm);
  });
  return all;
}

double worst(const Result& have, const Result& want) {
  double error = 0;
  const auto h = have.all(), w = want.all();
  for (size_t i = 0; i < h.size(); ++i) error = std::max(error, relative_error(h[i], w[i]));
  return error;
}

// Checksums equal the published ones for any ring size (Ring Self-Attention, check 14).
TEST(Linformer, HasThePublishedNumbers) {
  for (const int ring : {1, 2, 4, 8}) {
    const Result r = on_ranks({.ring = ring});
    EXPECT_NEAR(r.out.sum().item<double>(), -167.1721865260880, 1e-10);
    EXPECT_NEAR(r.out.square().sum().item<double>(), 6594.052824234985, 1e-9);
    EXPECT_NEAR(r.de.square().sum().item<double>(), 67505.25175308819, 1e-8);
    EXPECT_NEAR(r.df.square().sum().item<double>(), 29185.35742679541, 1e-8);
  }
}

TEST(Linformer, EqualsTheDefinitionOnAnyRing) {
  for (const int ring : {1, 2, 3, 5, 8}) {
    for (const auto& [tokens, heads, key_heads] : {std::tuple{32, 3, 3}, {37, 6, 2}, {64, 4, 1}, {9, 4, 4}}) {
      const Case c{.ring = ring, .tokens = tokens, .heads = heads, .key_heads = key_heads};
      EXPECT_LT(worst(on_ranks(c), by_definition(c)), 1e-12) << ring << " ranks, " << tokens << " tokens";
    }
  }
}

// Padding adds nothing to the summaries. The control ignores the lengths.
TEST(Linformer, PaddingGoesIntoNoSummary) {
  for (const auto& lengths : {std::vector<int64_t>{20, 32}, {32, 1}, {8, 16}}) {
    const Case c{.ring = 4, .lengths = lengths};
    EXPECT_LT(worst(on_ranks(c), by_definition(c)), 1e-12);
    EXPECT_GT(worst(on_ranks({.ring = 4}), by_definition(c)), 1e-3) << "the control";
  }
}

// Each of the two all-reduces sends 2 (n-1)/n 2 B Z K_p A elements: B = 2 sequences, Z = 3 key heads of A = 4 elements,
// K_p = 5.
TEST(Linformer, SendsTheSameForAnyLength) {
  for (const auto& [ring, elements] : {std::pair{1, 0}, {2, 240}, {4, 360}, {8, 420}}) {
    for (const int64_t tokens : {32, 64}) {
      on_ranks({.ring = ring, .tokens = tokens}, right, [&, expected = elements](Comm& comm) {
        EXPECT_EQ(comm.total_traffic().bytes.sent, 2 * 8 * expected) << ring << " ranks";
        EXPECT_EQ(comm.total_traffic().calls, expected > 0 ? 2 : 0);
      });
    }
  }
}

TEST(Linformer, DetectsErrors) {
  const Case c{.ring = 4};
  const Result want = by_definition(c);
  constexpr double kFar = 1e-3;
  // dE and dF are reduced over the ring, as if the projections were replicated.
  const Result reduced = on_ranks(c, right, {}, true);
  EXPECT_LT(relative_error(reduced.dk, want.dk), 1e-12);
  EXPECT_GT(relative_error(reduced.de, want.de), kFar);
  EXPECT_GT(relative_error(reduced.df, want.df), kFar);
  // The summaries have only this rank's tokens.
  EXPECT_GT(relative_error(on_ranks(c, [](Comm&) { return linformer_attention(); }).out, want.out), kFar);
  // The gradients of the summaries are not summed over the ring; forward is right.
  const auto forward_only = [](Comm& comm) {
    AttentionCore core = linformer(comm, kOverRing);
    core.backward = linformer_attention().backward;
    return core;
  };
  const Result partial = on_ranks(c, forward_only);
  EXPECT_LT(relative_error(partial.out, want.out), 1e-12);
  EXPECT_GT(relative_error(partial.dk, want.dk), kFar);
  EXPECT_GT(relative_error(partial.de, want.de), kFar);
}

}  // namespace
}  // namespace orthant::linformer_test
