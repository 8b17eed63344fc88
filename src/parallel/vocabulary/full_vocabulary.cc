#include "parallel/vocabulary/full_vocabulary.h"

#include <ATen/ATen.h>

#include <vector>

#include "base/errors.h"
#include "mesh/mesh.h"

namespace orthant {

at::Tensor compute_full_embedding(Comm& comm, const FullVocabulary& vocabulary, const Weight& table,
                                  const at::Tensor& tokens) {
  const Range rows = vocabulary.rows;
  const at::Tensor value = vocabulary.mesh.whole(table), flat = tokens.flatten();
  ORTHANT_CHECK(value.size(0) == rows.size(), value.size(0), rows.size());
  const at::Tensor here = flat.ge(rows.begin).logical_and_(flat.lt(rows.end)).nonzero().squeeze(1);
  at::Tensor found = at::zeros({flat.numel(), value.size(1)}, value.options());
  found.index_copy_(0, here, value.index_select(0, flat.index_select(0, here).sub_(rows.begin)));
  found = vocabulary.mesh.sum(found, 1);
  comm.all_reduce(found, vocabulary.axes).wait();  // all summands but one are zeros
  std::vector<int64_t> shape = tokens.sizes().vec();
  shape.push_back(found.size(1));
  return found.view(shape);
}

at::Tensor compute_full_logits(Comm& comm, const FullVocabulary& vocabulary, const Weight& head, at::Tensor x) {
  const SliceMesh& mesh = vocabulary.mesh;
  const int positions = comm.group_size(vocabulary.axes);
  x = x.contiguous();
  comm.broadcast(x, vocabulary.axes, vocabulary.root).wait();
  const at::Tensor own = at::mv(mesh.whole(head), mesh.gather(x.view({1, 1, -1})).flatten());
  std::vector<int64_t> counts;
  for (int place = 0; place < positions; ++place) {
    const int64_t slice = shard(vocabulary.size, positions, place).size();
    for (int column = 0; column < mesh.columns(); ++column)
      counts.push_back(shard(slice, mesh.columns(), column).size());
  }
  Axes axes = vocabulary.axes;
  if (mesh.columns() > 1) axes.emplace_back(kColumn);
  at::Tensor all = at::empty({vocabulary.size}, own.options());
  comm.all_gather(all, own, axes, counts).wait();
  mesh.broadcast_first_row(all);
  return all;
}

}  // namespace orthant
