#include "runtime/inference.h"

#include <ATen/ATen.h>

#include "base/labels.h"
#include "model/element.h"
#include "runtime/from_plan.h"

namespace orthant {

Inference::Inference(const Plan& plan, Primitives primitives, Session& session, Comm& comm)
    : plan_(plan),
      comm_(comm),
      stream_(at::TensorOptions(session.weights().device()).dtype(session.weights().working_dtype())),
      model_(plan.architecture, session.weights(), std::move(primitives), {}),
      stages_(
          [this] {
            ModelPipeline pipeline = pipeline_of(plan_, comm_.rank());
            pipeline.stream_shape = [this](int64_t sequences) {
              return plan_.stream_shape(comm_.rank(), sequences, tokens_);
            };
            return pipeline;
          }(),
          model_, session.weights(), nullptr, session.sharded_states(), comm),
      row_(select_forwards(plan.row(comm.rank()))) {
  // One microbatch, and no Z, which belongs to the loss.
  std::erase_if(row_, [](const Action& action) { return action.microbatch != 0 || action.kind == ActionKind::Z; });
  row_ = plan.with_gathers(row_);
}

at::Tensor Inference::logits(const Microbatch& batch) {
  const at::NoGradGuard no_grad;
  tokens_ = batch.tokens_BT.size(1);
  at::Tensor logits;
  stages_.run(row_, {.sequences = {batch.tokens_BT.size(0)},
                     .load = [&](int) { return on_device(batch, stream_.device(), plan_.architecture.vocab_size); },
                     .logits = [&](const at::Tensor& made) { logits = made; }});
  if (!plan_.vocabulary.empty()) return logits.cpu();
  if (!logits.defined()) {
    const int64_t labels = batch.labels_BT.ne(kIgnoredLabel).sum().item<int64_t>();
    logits = at::empty({labels, plan_.architecture.vocab_size}, stream_.dtype(wide(stream_.dtype().toScalarType())));
  }
  comm_.broadcast(logits, kOverPipeline, plan_.stages.back().owner).wait();
  return logits.cpu();
}

}  // namespace orthant
