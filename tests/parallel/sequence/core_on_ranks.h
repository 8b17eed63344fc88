// Runs an attention core on thread ranks without rotary positions, joins the shards of all ranks, and gives the dense
// oracle.
#pragma once

#include "tests/parallel/sequence/sharded_attention.h"
#include "tests/support/dense_attention.h"

namespace orthant {

inline AttentionInputs inputs_of(const AttentionCase& c) {
  AttentionInputs in = attention_inputs(c.sequences, c.heads, c.key_heads, c.length, c.head_dim, c.dtype);
  in.scale = 1 / std::sqrt(static_cast<double>(c.head_dim));
  return in;
}

inline Microbatch batch_of(const AttentionCase& c, const at::Tensor& positions) {
  Microbatch batch;
  batch.sequence_positions_T = positions;
  batch.packing = c.packing;
  batch.sequence_length = c.length;
  return batch;
}

inline Visibility visibility_of_all(const AttentionCase& c) {
  std::vector<int64_t> all(static_cast<size_t>(c.length));
  std::iota(all.begin(), all.end(), 0);
  Microbatch batch = batch_of(c, {});
  return visibility(batch, c.rule, all);
}

/// Output, log-sum-exp, dQ, dK, dV. The log-sum-exp is NaN if the last tensor that forward keeps is not that of this
/// rank's own tokens and heads, as with Ulysses.
using CoreResult = std::array<at::Tensor, 5>;
inline const char* const kCoreResults[] = {"output", "log-sum-exp", "dQ", "dK", "dV"};

/// Called on each rank with the positions of its tokens, the tensors that forward kept, and the gradients.
using LookAtCore = std::function<void(Comm&, const at::Tensor& positions, const std::vector<at::Tensor>& kept,
                                      const AttentionGradients&)>;

/// Runs forward and backward of one core on this rank's shard, and copies the results into `all`. The gradients are
/// rounded to the type of the inputs, as in a model.
inline void run_core(const AttentionCore& core, const AttentionCase& c, const AttentionInputs& in, Comm& comm,
                     CoreResult& all, std::mutex& mutex, const LookAtCore& look) {
  const auto positions =
      held_positions(c.placement, c.length, c.ulysses, comm.position(kOverUlysses), c.ring, comm.position(kOverRing));
  const at::Tensor index = at::tensor(positions, at::kLong);
  const auto part = [&](const at::Tensor& t) { return t.index_select(2, index); };
  const Microbatch batch = batch_of(c, index);
  const AttentionShape shape = shape_of(c);
  const auto kept = core.forward(part(in.q), part(in.k), part(in.v), batch, shape);
  const AttentionGradients g = core.backward(part(in.dout), kept, batch, shape);
  const std::lock_guard lock(mutex);
  all[0].index_copy_(2, index, kept[0].to(c.dtype));
  if (kept.back().dim() == 3 && c.ulysses == 1) all[1].index_copy_(2, index, kept.back().to(at::kDouble));
  const at::Tensor* gradients[] = {&g.dq_BHTD, &g.dk_BKSD, &g.dv_BKSD};
  for (size_t i = 0; i < 3; ++i) all[i + 2].index_copy_(2, index, gradients[i]->to(c.dtype));
  if (look) look(comm, index, kept, g);
}

/// The joined results of all ranks, unsharded. Elements that no rank writes are NaN.
inline CoreResult core_on_ranks(const AttentionCase& c, const AttentionInputs& in, const MakeCore& make,
                                const LookAtCore& look = {}) {
  const auto unknown = [](const at::Tensor& like) { return at::full_like(like, NAN); };
  CoreResult all{unknown(in.q), at::full({c.sequences, c.heads, c.length}, NAN, at::kDouble), unknown(in.q),
                 unknown(in.k), unknown(in.v)};
  std::mutex mutex;
  run_ranks(c.ulysses * c.ring, [&](Rendezvous rendezvous, int rank) {
    Comm comm(c.mesh(), rank, rendezvous, {});
    run_core(make(comm, c), c, in, comm, all, mutex, look);
  });
  return all;
}

/// The oracle: attention by its definition on one device.
inline CoreResult dense(const AttentionCase& c, const AttentionInputs& in) {
  return dense_attention(in, visibility_of_all(c));
}

}  // namespace orthant
