#include "parallel/tensor/summa.h"

#include <ATen/ATen.h>

#include <array>
#include <vector>

#include "model/element.h"
#include "model/linear.h"
#include "parallel/tensor/plan.h"

namespace orthant {
namespace {

const Axes kOverColumns{std::string(kColumn)}, kOverRows{std::string(kRow)};

std::vector<SummaPanel> panels_of(const Comm& comm, int64_t extent) {
  return summa_panels(extent, comm.group_size(kOverColumns), comm.group_size(kOverRows));
}

// A piece of a matrix on its way to the ranks of a group: from the holder's own memory where that is in one piece.
struct Moving {
  at::Tensor panel;
  Work work;
};

Moving broadcast_from(Comm& comm, const Axes& axes, int holder, const at::Tensor& own, int64_t dim, Range within,
                      int64_t extent) {
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

// Sums on their way to where they belong: the last panel's while the next is multiplied.
class Sums {
 public:
  Sums(Comm& comm, const Axes& axes) : comm_(comm), axes_(axes) {}
  void send(at::Tensor sum, int holder, const at::Tensor& place) {
    finish();
    sum_ = std::move(sum);
    place_ = comm_.position(axes_) == holder ? place : at::Tensor();
    work_ = comm_.reduce(sum_, axes_, holder);
  }
  void finish() {
    work_.wait();
    if (place_.defined()) place_.copy_(sum_);
    place_ = at::Tensor();
  }

 private:
  Comm& comm_;
  const Axes& axes_;
  at::Tensor sum_, place_;
  Work work_;
};

int64_t share_size(const Comm& comm, const Axes& axes, int64_t extent) {
  return shard(extent, comm.group_size(axes), comm.position(axes)).size();
}

// work(panel, what moves) for all of them; the next panel is under way meanwhile.
template <class Start, class Multiply>
void for_panels(const std::vector<SummaPanel>& panels, Start start, Multiply multiply) {
  auto next = start(panels.front());
  for (size_t t = 0; t < panels.size(); ++t) {
    auto now = std::move(next);
    for (Moving& operand : now) operand.work.wait();
    if (t + 1 < panels.size()) next = start(panels[t + 1]);
    multiply(panels[t], now);
  }
}

}  // namespace

at::Tensor summa_ab(Comm& comm, const at::Tensor& a, const at::Tensor& b, int64_t K) {
  at::Tensor sum = at::zeros({a.size(0), b.size(1)}, a.options().dtype(wide(a.scalar_type())));
  for_panels(
      panels_of(comm, K),
      [&](const SummaPanel& p) { return std::array<Moving, 2>{columns_panel(comm, p, a), rows_panel(comm, p, b)}; },
      [&](const SummaPanel&, const auto& moved) { add_product(sum, moved[0].panel, moved[1].panel, true); });
  return sum.to(a.scalar_type());
}

at::Tensor summa_abt(Comm& comm, const at::Tensor& a, const at::Tensor& b, int64_t K) {
  at::Tensor out = at::empty({a.size(0), share_size(comm, kOverColumns, K)}, a.options());
  Sums sums(comm, kOverColumns);
  for_panels(
      panels_of(comm, K), [&](const SummaPanel& p) { return std::array<Moving, 1>{rows_panel(comm, p, b)}; },
      [&](const SummaPanel& p, const auto& moved) {
        const bool mine = comm.position(kOverColumns) == p.column;
        sums.send(a.mm(moved[0].panel.t()), p.column,
                  mine ? out.narrow(1, p.in_column.begin, p.in_column.size()) : at::Tensor());
      });
  sums.finish();
  return out;
}

at::Tensor summa_atb(Comm& comm, const at::Tensor& a, const at::Tensor& b, int64_t K) {
  const auto sum_type = a.options().dtype(wide(a.scalar_type()));
  at::Tensor out = at::empty({share_size(comm, kOverRows, K), b.size(1)}, sum_type);
  Sums sums(comm, kOverRows);
  for_panels(
      panels_of(comm, K), [&](const SummaPanel& p) { return std::array<Moving, 1>{columns_panel(comm, p, a)}; },
      [&](const SummaPanel& p, const auto& moved) {
        at::Tensor product = at::empty({p.all.size(), b.size(1)}, sum_type);
        add_product(product, moved[0].panel.t(), b, false);
        const bool mine = comm.position(kOverRows) == p.row;
        sums.send(std::move(product), p.row, mine ? out.narrow(0, p.in_row.begin, p.in_row.size()) : at::Tensor());
      });
  sums.finish();
  return out;
}

}  // namespace orthant
