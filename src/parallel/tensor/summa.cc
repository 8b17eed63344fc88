#include "parallel/tensor/summa.h"

#include <ATen/ATen.h>

#include <utility>
#include <vector>

#include "model/element.h"
#include "model/linear.h"
#include "parallel/tensor/panels.h"
#include "parallel/tensor/plan.h"

namespace orthant {
namespace {

std::vector<SummaPanel> panels_of(const Comm& comm, int64_t extent) {
  return summa_panels(extent, comm.group_size(kOverColumns), comm.group_size(kOverRows));
}

// A panel that its holder broadcasts to a group, from its own memory if the panel is contiguous there.
struct Moving {
  at::Tensor panel;
  Work work;

  at::Tensor wait() {
    work.wait();
    return std::move(panel);
  }
};
struct BothMoving {
  Moving a, b;

  std::pair<at::Tensor, at::Tensor> wait() { return {a.wait(), b.wait()}; }
};

Moving broadcast_from(Comm& comm, const Axes& axes, int holder, const at::Tensor& own, int64_t dim, Range within,
                      int64_t extent) {
  if (comm.group_size(axes) == 1) return {own.narrow(dim, within.begin, within.size()), Work()};
  Moving moving;
  if (comm.position(axes) == holder) {
    moving.panel = own.narrow(dim, within.begin, within.size()).contiguous();
  } else {
    auto sizes = own.sizes().vec();
    sizes[static_cast<size_t>(dim)] = extent;
    moving.panel = at::empty(sizes, own.options());
  }
  moving.work = comm.broadcast(moving.panel, axes, holder);
  return moving;
}

Moving columns_panel(Comm& comm, const SummaPanel& p, const at::Tensor& a_TK) {
  return broadcast_from(comm, kOverColumns, p.column, a_TK, 1, p.in_column, p.all.size());
}
Moving rows_panel(Comm& comm, const SummaPanel& p, const at::Tensor& b_KN) {
  return broadcast_from(comm, kOverRows, p.row, b_KN, 0, p.in_row, p.all.size());
}

// Starts the reduce of a panel's partial sums to the holder, which copies the result into its shard `out` along `dim`.
void send(PendingSum<Moving>& sums, Comm& comm, const Axes& axes, const at::Tensor& sum, int holder,
          const at::Tensor& out, int64_t dim, const Range& place) {
  sums.next([&] { return Moving{sum, comm.reduce(sum, axes, holder)}; },
            [=, mine = comm.position(axes) == holder](const at::Tensor& whole) {
              if (mine) out.narrow(dim, place.begin, place.size()).copy_(whole);
            });
}

int64_t share_size(const Comm& comm, const Axes& axes, int64_t extent) {
  return shard(extent, comm.group_size(axes), comm.position(axes)).size();
}

}  // namespace

at::Tensor summa_ab(Comm& comm, const at::Tensor& a, const at::Tensor& b, int64_t K) {
  at::Tensor sum = at::zeros({a.size(0), b.size(1)}, a.options().dtype(wide(a.scalar_type())));
  for_panels(
      panels_of(comm, K),
      [&](const SummaPanel& p) { return BothMoving{columns_panel(comm, p, a), rows_panel(comm, p, b)}; },
      [&](const SummaPanel&, auto arrive) {
        const auto [a_panel, b_panel] = arrive();
        add_product(sum, a_panel, b_panel, true);
      });
  return sum.to(a.scalar_type());
}

at::Tensor summa_abt(Comm& comm, const at::Tensor& a, const at::Tensor& b, int64_t K) {
  at::Tensor out = at::empty({a.size(0), share_size(comm, kOverColumns, K)}, a.options());
  PendingSum<Moving> sums;
  for_panels(
      panels_of(comm, K), [&](const SummaPanel& p) { return rows_panel(comm, p, b); },
      [&](const SummaPanel& p, auto arrive) {
        const at::Tensor product = matrix_product(a, arrive().t());
        send(sums, comm, kOverColumns, product, p.column, out, 1, p.in_column);
      });
  sums.finish();
  return out;
}

at::Tensor summa_atb(Comm& comm, const at::Tensor& a, const at::Tensor& b, int64_t K) {
  const auto sum_type = a.options().dtype(wide(a.scalar_type()));
  at::Tensor out = at::empty({share_size(comm, kOverRows, K), b.size(1)}, sum_type);
  PendingSum<Moving> sums;
  for_panels(
      panels_of(comm, K), [&](const SummaPanel& p) { return columns_panel(comm, p, a); },
      [&](const SummaPanel& p, auto arrive) {
        const at::Tensor product = at::empty({p.all.size(), b.size(1)}, sum_type);
        add_product(product, arrive().t(), b, false);
        send(sums, comm, kOverRows, product, p.row, out, 0, p.in_row);
      });
  sums.finish();
  return out;
}

}  // namespace orthant
