// Inference: a model whose stages carry out a row of forwards that ends in logits instead of a loss. It has the stages,
// the primitives and the output layer of training.
#pragma once

#include <vector>

#include "comm/comm.h"
#include "model/primitives.h"
#include "plan/plan.h"
#include "runtime/model_stages.h"
#include "runtime/session.h"

namespace orthant {

class Inference {
 public:
  /// primitives: usually those of primitives_of(). Plan, session and Comm must outlive it.
  Inference(const Plan& plan, Primitives primitives, Session& session, Comm& comm);
  Inference(const Inference&) = delete;

  /// The logits [N,V] of the microbatch's N tokens that have a label, in float32 (float64 for float64). All ranks that
  /// hold stages of the same replica, or other tokens of these sequences, must call it together; all ranks, if weights
  /// are sharded. Ranks that hold the same tokens receive the same logits: one broadcast over pipeline ranks, unless
  /// they shard the vocabulary.
  at::Tensor logits(const Microbatch& batch);

 private:
  const Plan& plan_;
  Comm& comm_;
  const at::TensorOptions stream_;
  const Transformer model_;
  int64_t tokens_ = 0;  // of each sequence, in the current microbatch
  ModelStages stages_;
  std::vector<Action> row_;
};

}  // namespace orthant
