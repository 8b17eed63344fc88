#include "parallel/tensor/stationary.h"

#include <ATen/ATen.h>

#include "model/linear.h"

namespace orthant {

TokenPanels::TokenPanels(const TensorMesh& mesh, int64_t sequences, int64_t tokens, int64_t width, bool summed,
                         int64_t element_bytes)
    : mesh_(mesh), sequences_(sequences), tokens_(tokens), width_(width),
      stream_(stream_panels(mesh.plan(), sequences, tokens, width, summed, element_bytes)) {}

Redistribution TokenPanels::gather(const at::Tensor& part, const Range& panel) const {
  const at::Tensor all = part.reshape({stream_.sequences, stream_.tokens, part.size(-1)});
  return mesh_.gather(all.narrow(1, panel.begin, panel.size()), width_);
}

at::Tensor TokenPanels::rows(const at::Tensor& x, const Range& panel) const {
  const at::Tensor all = x.reshape({stream_.sequences, stream_.shares, stream_.tokens, x.size(-1)});
  return flat(all.narrow(2, panel.begin, panel.size())).contiguous();
}

void TokenPanels::multiply(at::Tensor& y, const Range& panel, const at::Tensor& a, const at::Tensor& b) const {
  if (!y.defined()) y = at::empty({sequences_, tokens_, b.size(1)}, a.options());
  const at::Tensor all = y.view({stream_.sequences, stream_.shares, stream_.tokens, y.size(-1)});
  const at::Tensor place = all.narrow(2, panel.begin, panel.size());
  if (place.is_contiguous()) {
    at::Tensor rows = flat(place);
    write_product(rows, a, b);
  } else {
    place.copy_(matrix_product(a, b).view(place.sizes()));
  }
}

void StreamSum::send(const Range& panel, const at::Tensor& rows) {
  const StreamPanels& stream = panels_.stream_;
  sum_.next(
      [&] { return panels_.mesh_.sum(rows.view({stream.sequences, stream.shares * panel.size(), rows.size(1)})); },
      [this, panel](const at::Tensor& sum) {
        if (panels_.all().size() == 1) {
          part_ = sum;
          return;
        }
        const StreamPanels& all = panels_.stream_;
        if (!part_.defined()) part_ = at::empty({all.sequences, all.tokens, sum.size(-1)}, sum.options());
        part_.narrow(1, panel.begin, panel.size()).copy_(sum);
      });
}

at::Tensor StreamSum::finish() {
  sum_.finish();
  return part_.view({panels_.sequences_, panels_.tokens_ / panels_.stream_.shares, part_.size(2)});
}

at::Tensor gather_and_multiply(const TensorMesh& mesh, const at::Tensor& part, int64_t K,
                               const std::function<at::Tensor()>& matrix) {
  const TokenPanels panels(mesh, part.size(0), mesh.all_tokens(part.size(1)), K, false, part.element_size());
  at::Tensor y;
  for_panels(
      panels.all(), [&](const Range& panel) { return panels.gather(part, panel); },
      [&](const Range& panel, auto arrive) {
        const at::Tensor x = flat(arrive());
        panels.multiply(y, panel, x, matrix());
      });
  return y;
}

at::Tensor multiply_and_sum(const TensorMesh& mesh, const at::Tensor& x,
                            const std::function<at::Tensor()>& matrix) {
  const at::Tensor w = matrix();
  const TokenPanels panels(mesh, x.size(0), x.size(1), w.size(1), true, x.element_size());
  StreamSum y(panels);
  for (const Range& panel : panels.all()) y.send(panel, matrix_product(panels.rows(x, panel), w));
  return y.finish();
}

}  // namespace orthant
