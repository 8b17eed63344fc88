#include "parallel/sequence/linformer/run.h"

#include "model/linformer.h"
#include "parallel/sequence/placement_plan.h"

namespace orthant {

AttentionCore linformer(Comm& comm, Axes axes) {
  return linformer_attention(
      {.begin =
           [&comm, axes](int64_t length) {
             return ring_positions(SequencePlacement::contiguous, length, comm.group_size(axes), comm.position(axes))
                 .front();
           },
       .sum = [&comm, axes](const at::Tensor& partial) { comm.all_reduce(partial, axes).wait(); }});
}

}  // namespace orthant
