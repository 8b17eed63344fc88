#include "parallel/vocabulary/whole.h"

#include <ATen/ATen.h>

#include <vector>

#include "base/errors.h"
#include "mesh/mesh.h"

namespace orthant {

at::Tensor whole_embedding(Comm& comm, const WholeVocabulary& vocabulary, const Weight& table,
                           const at::Tensor& tokens) {
  const Range rows = shard(vocabulary.size, comm.group_size(vocabulary.axes), comm.position(vocabulary.axes));
  const at::Tensor value = table.value.detach(), flat = tokens.flatten();
  ORTHANT_CHECK(value.size(0) == rows.size(), value.size(0), rows.size());
  const at::Tensor here = flat.ge(rows.begin).logical_and_(flat.lt(rows.end)).nonzero().squeeze(1);
  const at::Tensor found = at::zeros({flat.numel(), value.size(1)}, value.options());
  found.index_copy_(0, here, value.index_select(0, flat.index_select(0, here).sub_(rows.begin)));
  comm.all_reduce(found, vocabulary.axes).wait();  // all summands but one are zeros
  std::vector<int64_t> shape = tokens.sizes().vec();
  shape.push_back(value.size(1));
  return found.view(shape);
}

at::Tensor whole_logits(Comm& comm, const WholeVocabulary& vocabulary, const Weight& head, at::Tensor x) {
  const int ranks = comm.group_size(vocabulary.axes);
  x = x.contiguous();
  comm.broadcast(x, vocabulary.axes, vocabulary.root).wait();
  const at::Tensor own = at::mv(head.value.detach(), x);
  std::vector<int64_t> counts;
  for (int rank = 0; rank < ranks; ++rank) counts.push_back(shard(vocabulary.size, ranks, rank).size());
  at::Tensor all = at::empty({vocabulary.size}, own.options());
  comm.all_gather(all, own, vocabulary.axes, counts).wait();
  return all;
}

}  // namespace orthant
