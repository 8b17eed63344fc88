// redistribute() on tensors, for random meshes, layouts and uneven shapes on 2 to 8 thread ranks. The forward gives
// each rank its part of the global tensor in layout `to`. The backward gives each rank its part of the one-device
// gradient in layout dual(from). Bytes equal the plan. Negative control: a backward without the swap of R and P.
#include "comm/redistribute.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <mutex>

#include "base/errors.h"
#include "comm/thread_ranks.h"
#include "tests/mesh/cases.h"

namespace orthant::redistribute_test {
namespace {

// Integers in float64, so that every sum is exact in every order.
at::Tensor numbers(Random& random, const std::vector<int64_t>& shape) {
  at::Tensor out = at::empty(shape, at::kDouble);
  auto* values = out.mutable_data_ptr<double>();
  for (int64_t i = 0; i < out.numel(); ++i) values[i] = random.below(1000) - 500;
  return out;
}

at::Tensor part_of(const at::Tensor& global, const Mesh& mesh, const Layout& layout, int rank) {
  const std::vector<int64_t> shape(global.sizes().begin(), global.sizes().end());
  const auto ranges = local_ranges(mesh, layout, shape, rank);
  at::Tensor part = global;
  for (size_t dim = 0; dim < ranges.size(); ++dim) {
    part = part.slice(static_cast<int64_t>(dim), ranges[dim].begin, ranges[dim].end);
  }
  return part.contiguous();
}

// Each rank's part of the global tensor. Along partial axes the summands are random, and that of the first position
// completes the sum.
std::vector<at::Tensor> place(Random& random, const at::Tensor& global, const Mesh& mesh, const Layout& layout) {
  std::vector<at::Tensor> parts;
  for (int rank = 0; rank < mesh.size(); ++rank) {
    const at::Tensor whole_part = part_of(global, mesh, layout, rank);
    const std::vector<int64_t> shape(whole_part.sizes().begin(), whole_part.sizes().end());
    parts.push_back(mesh.group_index(rank, layout.partial) == 0 ? whole_part : numbers(random, shape));
  }
  for (int rank = 0; rank < mesh.size(); ++rank) {
    const auto group = mesh.group(rank, layout.partial);
    if (group[0] != rank) continue;
    at::Tensor first = parts[static_cast<size_t>(rank)].clone();
    for (size_t i = 1; i < group.size(); ++i) first -= parts[static_cast<size_t>(group[i])];
    parts[static_cast<size_t>(rank)] = first;
  }
  // Along an axis that replicates, all positions hold the same summand.
  for (int rank = 0; rank < mesh.size(); ++rank) {
    int leader = rank;
    for (const Axis& axis : mesh.axes) {
      const AxisPlacementKind kind = axis_placement(layout, axis.name).kind;
      if (kind == AxisPlacementKind::R || kind == AxisPlacementKind::I) leader = mesh.rank_at(leader, axis.name, 0);
    }
    parts[static_cast<size_t>(rank)] = parts[static_cast<size_t>(leader)].clone();
  }
  return parts;
}

bool holds(const std::vector<at::Tensor>& parts, const at::Tensor& global, const Mesh& mesh, const Layout& layout) {
  for (int rank = 0; rank < mesh.size(); ++rank) {
    const at::Tensor expected = part_of(global, mesh, layout, rank);
    at::Tensor sum = at::zeros_like(expected);
    for (const int member : mesh.group(rank, layout.partial)) {
      const at::Tensor& part = parts[static_cast<size_t>(member)];
      if (part.sizes() != expected.sizes()) return false;
      sum += part;
    }
    if (!at::equal(sum, expected)) return false;
  }
  return true;
}

// The layout without axes of size 1, which the steps of a plan omit.
Layout without_unit_axes(const Mesh& mesh, Layout layout) {
  const auto unit = [&](const std::string& axis) { return mesh.axis_size(axis) == 1; };
  for (auto& cuts : layout.split) std::erase_if(cuts, unit);
  std::erase_if(layout.partial, unit);
  std::erase_if(layout.replicated, unit);
  return layout;
}

struct Outcome {
  std::vector<at::Tensor> values, gradients;
  std::vector<Moved> bytes;
};

// Runs forward and backward on all ranks. `gradients` are the parts of dL/dy in layout dual(to).
Outcome run(const Case& c, const std::vector<at::Tensor>& parts, const std::vector<at::Tensor>& gradients) {
  const auto n = static_cast<size_t>(c.mesh.size());
  Outcome outcome{std::vector<at::Tensor>(n), std::vector<at::Tensor>(n), std::vector<Moved>(n)};
  run_ranks(c.mesh.size(), [&](Rendezvous rendezvous, int rank) {
    const auto r = static_cast<size_t>(rank);
    Comm comm(c.mesh, rank, rendezvous, {.timeout_s = 30});
    at::Tensor x = parts[r].clone().requires_grad_(true);
    at::Tensor y = redistribute(comm, x, c.from, c.to, c.shape);
    outcome.bytes[r] = comm.total_traffic().bytes;
    outcome.values[r] = y.detach();
    outcome.gradients[r] = torch::autograd::grad({y}, {x}, {gradients[r]})[0];
  });
  return outcome;
}

TEST(Redistribute, ForwardAndBackwardOfRandomLayouts) {
  Random random(2024);
  int moved = 0, backward_differs_without_dual = 0;
  for (int round = 0; round < 80; ++round) {
    Case c = random_case(random);
    while (c.mesh.size() < 2 || c.mesh.size() > 8) c = random_case(random);
    const auto plan = redistribute(c.mesh, c.from, c.to, c.shape, 8);
    const at::Tensor x = numbers(random, c.shape), w = numbers(random, c.shape);
    const auto outcome = run(c, place(random, x, c.mesh, c.from), place(random, w, c.mesh, dual(c.to)));
    EXPECT_TRUE(holds(outcome.values, x, c.mesh, c.to)) << text(c, plan);
    EXPECT_TRUE(holds(outcome.gradients, w, c.mesh, dual(c.from))) << text(c, plan);
    for (int rank = 0; rank < c.mesh.size(); ++rank) {
      Moved planned;
      Layout before = without_unit_axes(c.mesh, c.from);
      for (const auto& step : plan) {
        planned += bytes_moved(c.mesh, step, before, c.shape, 8, rank);
        before = step.after;
      }
      EXPECT_EQ(outcome.bytes[static_cast<size_t>(rank)], planned) << text(c, plan);
      moved += planned.sent > 0;
    }
    // Negative control: a backward between the layouts themselves, without the swap of R and P.
    if (volume(c.shape) == 0) continue;
    const Case unswapped{.mesh = c.mesh, .from = c.to, .to = c.from, .shape = c.shape};
    const auto placed = place(random, w, c.mesh, dual(c.to));
    bool fits = true;
    for (int rank = 0; rank < c.mesh.size(); ++rank) {
      const auto shape = local_shape(c.mesh, c.to, c.shape, rank);
      fits = fits && placed[static_cast<size_t>(rank)].sizes() == at::IntArrayRef(shape);
    }
    if (!fits || dual(c.to) == c.to) continue;
    const auto back = run(unswapped, placed, place(random, x, c.mesh, dual(c.from)));
    backward_differs_without_dual += !holds(back.values, w, c.mesh, dual(c.from));
  }
  EXPECT_GT(moved, 60);
  EXPECT_GT(backward_differs_without_dual, 12);
}

TEST(Redistribute, MatrixProductOverASplitInnerDimIsTheOneDeviceProduct) {
  // y = x w, with the inner dim sharded unevenly over 3 ranks: the product is partial, and its sum is scattered over
  // rows.
  at::Tensor x = at::arange(35, at::kDouble).view({5, 7}).sin().requires_grad_(true);
  at::Tensor w = at::arange(28, at::kDouble).view({7, 4}).cos().requires_grad_(true);
  at::mm(x, w).pow(2).sum().backward();
  const Mesh mesh({{"tensor", 3}});
  const Layout columns{.split = {{}, {"tensor"}}}, rows{.split = {{"tensor"}, {}}};
  const Layout partial{.split = {{}, {}}, .partial = {"tensor"}};
  run_ranks(3, [&](Rendezvous rendezvous, int rank) {
    Comm comm(mesh, rank, rendezvous);
    at::Tensor x_part = part_of(x.detach(), mesh, rows, rank).requires_grad_(true);
    at::Tensor w_part = part_of(w.detach(), mesh, rows, rank).requires_grad_(true);
    const at::Tensor x_columns = redistribute(comm, x_part, rows, columns, {5, 7});
    const at::Tensor y = redistribute(comm, at::mm(x_columns, w_part), partial, rows, {5, 4});
    y.pow(2).sum().backward();
    EXPECT_TRUE(at::allclose(x_part.grad(), part_of(x.grad(), mesh, rows, rank), 1e-13, 1e-13));
    EXPECT_TRUE(at::allclose(w_part.grad(), part_of(w.grad(), mesh, rows, rank), 1e-13, 1e-13));
    EXPECT_EQ(comm.traffic().at({"tensor", "all_to_all"}).calls, 2);  // forward and backward
    EXPECT_EQ(comm.traffic().at({"tensor", "reduce_scatter"}).calls, 1);
    EXPECT_EQ(comm.traffic().at({"tensor", "all_gather"}).calls, 1);
    comm.barrier({"tensor"}).wait();
  });
}

TEST(Redistribute, AShapeThatDoesNotFitIsRefused) {
  run_ranks(2, [](Rendezvous rendezvous, int rank) {
    Comm comm(Mesh({{"data", 2}}), rank, rendezvous);
    const Layout split{.split = {{"data"}}};
    EXPECT_THROW((void)redistribute(comm, at::ones({4}), split, unsharded_layout(1), {6}), LogicError);
  });
}

}  // namespace
}  // namespace orthant::redistribute_test
