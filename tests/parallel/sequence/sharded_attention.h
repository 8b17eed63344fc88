// Attention with rotary positions over sequences that are sharded over thread ranks, and its oracle, the same attention
// on one device.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>
#include <mutex>
#include <numeric>

#include "comm/comm.h"
#include "comm/thread_ranks.h"
#include "model/attention_core.h"
#include "model/transformer.h"
#include "parallel/sequence/placement_plan.h"
#include "parallel/sequence/ring_attention/run.h"
#include "parallel/sequence/run.h"
#include "parallel/sequence/ulysses/run.h"
#include "tests/support/reference_values.h"
#include "tests/support/relative_error.h"

namespace orthant {

inline const Axes kOverRing = {"ring"}, kOverUlysses = {"ulysses"};

struct AttentionCase {
  int ulysses = 1, ring = 1;
  SequencePlacement placement = SequencePlacement::zigzag;
  int64_t sequences = 2, length = 64, heads = 4, key_heads = 4, head_dim = 8;
  VisibilityRule rule;
  std::shared_ptr<const Packing> packing;
  at::ScalarType dtype = at::kDouble;
  bool ring_inside = false;  // mesh order: ring inside ulysses, so ring neighbors are adjacent ranks

  Mesh mesh() const {
    const Axis u{"ulysses", ulysses}, r{"ring", ring};
    return ring_inside ? Mesh({r, u}) : Mesh({u, r});
  }
};

/// Output [B, T, H D], and the gradient of the fused q, k and v, in the order of the held tokens.
struct AttentionResult {
  at::Tensor out, dqkv;
};

inline AttentionShape shape_of(const AttentionCase& c) {
  Architecture a;
  a.head_dim = c.head_dim;
  const auto [cos, sin] = rotary_tables(a, c.length, c.dtype == at::kDouble ? at::kDouble : at::kFloat);
  return {.heads = c.heads,
          .kv_heads = c.key_heads,
          .head_dim = c.head_dim,
          .max_positions = c.length,
          .cos_PD = cos,
          .sin_PD = sin,
          .rule = c.rule};
}

inline at::Tensor input_of(const AttentionCase& c) {
  return reference_values({c.sequences, c.length, (c.heads + 2 * c.key_heads) * c.head_dim}, 1).to(c.dtype);
}
inline at::Tensor gradient_of(const AttentionCase& c) {
  return reference_values({c.sequences, c.length, c.heads * c.head_dim}, 4).to(c.dtype);
}

/// Forward and backward on the tokens at positions `held`. rotary_positions_T are the positions by which they are
/// rotated; by default these are the positions in the sequence.
inline AttentionResult attend_at(const AttentionCore& core, const AttentionCase& c,
                                 const std::vector<int64_t>& held, at::Tensor rotary_positions_T = {}) {
  const at::Tensor index = at::tensor(held, at::kLong);
  if (!rotary_positions_T.defined()) rotary_positions_T = index;
  Microbatch batch;
  batch.positions_BT = rotary_positions_T.unsqueeze(0).expand({c.sequences, -1}).contiguous();
  batch.sequence_positions_T = index;
  batch.packing = c.packing;
  batch.sequence_length = c.length;
  const at::Tensor qkv = input_of(c).index_select(1, index).set_requires_grad(true);
  const at::Tensor out = attention(core, qkv, batch, shape_of(c));
  torch::autograd::backward({out}, {gradient_of(c).index_select(1, index)});
  return {out.detach(), qkv.grad()};
}

inline AttentionResult on_one_device(const AttentionCase& c) {
  std::vector<int64_t> all(static_cast<size_t>(c.length));
  std::iota(all.begin(), all.end(), 0);
  return attend_at(local_attention(), c, all);
}

using MakeCore = std::function<AttentionCore(Comm&, const AttentionCase&)>;
using OnRank = std::function<void(Comm&, const AttentionResult&)>;

/// Runs the core on all ranks and joins their shards. Elements that no rank writes are NaN.
inline AttentionResult on_ranks(const AttentionCase& c, const MakeCore& make, const OnRank& look = {},
                                const std::function<at::Tensor(const at::Tensor& held)>& rotary_positions = {}) {
  AttentionResult all{at::full_like(gradient_of(c), NAN), at::full_like(input_of(c), NAN)};
  std::mutex mutex;
  run_ranks(c.ulysses * c.ring, [&](Rendezvous rendezvous, int rank) {
    Comm comm(c.mesh(), rank, rendezvous, {});
    const AttentionCore core = make(comm, c);
    const auto held =
        held_positions(c.placement, c.length, c.ulysses, comm.position(kOverUlysses), c.ring, comm.position(kOverRing));
    const at::Tensor index = at::tensor(held, at::kLong);
    const AttentionResult part = attend_at(core, c, held, rotary_positions ? rotary_positions(index) : at::Tensor());
    const std::lock_guard lock(mutex);
    all.out.index_copy_(1, index, part.out);
    all.dqkv.index_copy_(1, index, part.dqkv);
    if (look) look(comm, part);
  });
  return all;
}

/// The usual cores: Ulysses around ring attention (usp), and ring self-attention (two_rings). The published form of the
/// latter all-reduces dK and dV in backward.
inline SequencePlan plan_of(const AttentionCase& c, SequenceMethod method = SequenceMethod::ring_attention) {
  return {.ulysses = c.ulysses, .ring = c.ring, .placement = c.placement, .method = method};
}
inline AttentionCore usp(Comm& comm, const AttentionCase& c) { return sequence_attention(comm, plan_of(c)); }
inline AttentionCore two_rings(Comm& comm, const AttentionCase& c) {
  return sequence_attention(comm, plan_of(c, SequenceMethod::ring_self_attention));
}
inline AttentionCore two_rings_as_published(Comm& comm, const AttentionCase& c) {
  SequencePlan plan = plan_of(c, SequenceMethod::ring_self_attention);
  plan.all_reduce = true;
  return sequence_attention(comm, plan);
}

inline constexpr SequencePlacement kPlacements[] = {SequencePlacement::contiguous, SequencePlacement::zigzag,
                                                    SequencePlacement::stripe};

inline std::shared_ptr<const Packing> packing(std::vector<std::vector<int64_t>> starts,
                                              std::vector<int64_t> lengths = {}) {
  return std::make_shared<Packing>(Packing{std::move(starts), std::move(lengths)});
}

inline std::string name_of(const AttentionCase& c) {
  return fmt::format("ulysses {}, ring {}, placement {}, {} tokens, {}/{} heads, causal {}, window {}, packed {}",
                     c.ulysses, c.ring, static_cast<int>(c.placement), c.length, c.heads, c.key_heads, c.rule.causal,
                     c.rule.sliding_window, c.packing != nullptr);
}

}  // namespace orthant
