#include "parallel/sequence/run.h"

#include "parallel/sequence/linformer/run.h"
#include "parallel/sequence/ring_attention/run.h"
#include "parallel/sequence/ring_self_attention/run.h"
#include "parallel/sequence/ulysses/run.h"

namespace orthant {
namespace {

AttentionCore over_ring(Comm& comm, const SequencePlan& plan, const Axes& ring) {
  if (plan.method == SequenceMethod::ring_self_attention) {  // it rounds differently from the others, on one rank too
    return ring_self_attention(comm, ring, {.placement = plan.placement, .all_reduce = plan.all_reduce});
  }
  if (plan.ring == 1) return local_attention();
  if (plan.method == SequenceMethod::linformer) return linformer(comm, ring);
  return ring_attention(comm, ring, {.placement = plan.placement, .window = plan.window});
}

}  // namespace

AttentionCore sequence_attention(Comm& comm, const SequencePlan& plan, const SequenceAxes& axes) {
  AttentionCore core = over_ring(comm, plan, axes.ring);
  if (plan.ulysses == 1) return core;
  const int r = plan.ring > 1 ? comm.position(axes.ring) : 0;
  return ulysses(comm, axes.ulysses, {plan.placement, plan.ring, r}, std::move(core));
}

}  // namespace orthant
