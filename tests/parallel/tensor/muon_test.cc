// Sharded matrices are orthogonalized with the bits of one device, on every tensor mesh and for uneven shards, and the
// ranks send the planned bytes. The control orthogonalizes each rank's shard alone.
#include "parallel/tensor/muon.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "parallel/tensor/muon_plan.h"
#include "tests/parallel/tensor/matrices.h"

namespace orthant::muon_test {
namespace {

// Six matrices of uneven sizes, sharded as projections from and to the residual stream are.
struct Matrices6 {
  std::vector<ParameterInfo> parameters;
  std::vector<Layout> layouts;
  std::vector<at::Tensor> values;
};
Matrices6 six_matrices(const Axes& out, const Axes& in, at::ScalarType type) {
  Matrices6 all;
  at::manual_seed(3);
  const std::vector<std::vector<int64_t>> shapes = {{7, 7}, {5, 7}, {17, 7}, {7, 17}, {9, 11}, {7, 5}};
  for (const auto& shape : shapes) {
    all.parameters.push_back({.name = "matrix", .shape = shape, .role = ParameterRole::from_stream});
    all.layouts.push_back({.split = {out, in}, .partial = {}, .replicated = {}});
    all.values.push_back(at::randn(shape, at::kDouble).to(type));
  }
  return all;
}

std::vector<at::Tensor> shards_of(const Comm& comm, const Matrices6& all, const std::vector<size_t>& round) {
  std::vector<at::Tensor> shards;
  for (const size_t i : round) {
    const auto ranges = local_ranges(comm.mesh(), all.layouts[i], all.parameters[i].shape, comm.rank());
    shards.push_back(all.values[i].narrow(0, ranges[0].begin, ranges[0].size())
                         .narrow(1, ranges[1].begin, ranges[1].size()).contiguous());
  }
  return shards;
}

TEST(ShardedOrthogonalizer, HasTheBitsOfOneDevice) {
  for (const auto type : {at::kFloat, at::kDouble}) {
    for (const auto& [rows, columns, depth] :
         std::vector<std::array<int, 3>>{{1, 2, 1}, {1, 3, 1}, {2, 2, 1}, {2, 3, 1}, {3, 1, 2}, {2, 2, 2}}) {
      const std::string what = fmt::format("[{}, {}, {}]", rows, columns, depth);
      const Matrices6 all = six_matrices(columns > 1 ? kColumns : Axes(), rows > 1 ? kRows : Axes(), type);
      on_mesh(tensor_mesh(rows, columns, depth), [&](Comm& comm) {
        const std::vector<size_t> matrices = {0, 1, 2, 3, 4, 5};
        const Axes axes = axes_of_matrices(comm.mesh(), matrices, all.layouts);
        const ShardedOrthogonalizer sharded(comm, axes, all.parameters, all.layouts);
        Traffic planned;
        size_t done = 0;
        for (const auto& round : sharded.rounds(matrices)) {
          const auto have = sharded.orthogonalized(round, shards_of(comm, all, round));
          for (size_t i = 0; i < round.size(); ++i, ++done) {
            Matrices6 want = all;
            want.values[round[i]] = orthogonalized(all.values[round[i]].clone());
            EXPECT_TRUE(have[i].equal(shards_of(comm, want, {round[i]})[0])) << what << ", matrix " << round[i];
          }
          const auto elements = round_elements(comm.mesh(), axes, round, all.parameters, all.layouts, comm.rank());
          planned.calls += 2;
          const int64_t sent = elements.sent() * static_cast<int64_t>(c10::elementSize(type));
          planned.bytes += {sent, sent};
        }
        EXPECT_EQ(done, matrices.size()) << what;
        EXPECT_EQ(comm.total_traffic(), planned) << what;
      });
    }
  }
}

TEST(ShardedOrthogonalizerControl, ShardsAloneAreFarOff) {
  const Matrices6 all = six_matrices(kColumns, {}, at::kDouble);
  on_mesh(tensor_mesh(1, 2, 1), [&](Comm& comm) {
    Matrices6 want = all;
    want.values[2] = orthogonalized(all.values[2].clone());
    const at::Tensor alone = orthogonalized(shards_of(comm, all, {2})[0]);
    EXPECT_GT((alone - shards_of(comm, want, {2})[0]).abs().max().item<double>(), 0.1);
  });
}

// On 2 x 2 ranks a 6 x 4 matrix has shards of 3 x 2: a rank sends 6 of its 24 elements in the first exchange if another
// rank computes the matrix, and the computing rank returns 18.
TEST(MatrixRounds, ExampleOfTwoMatrices) {
  const std::vector<ParameterInfo> parameters = {
      {.name = "small", .shape = {4, 2}, .role = ParameterRole::from_stream},
      {.name = "gain", .shape = {4}},
      {.name = "large", .shape = {6, 4}, .role = ParameterRole::from_stream}};
  const std::vector<Layout> layouts(3, Layout{.split = {{kColumn}, {kRow}}, .partial = {}, .replicated = {}});
  EXPECT_EQ(matrix_rounds(parameters, {0, 2}, 4), (std::vector<MatrixRound>{{2, 0}}));
  EXPECT_EQ(matrix_rounds(parameters, {0, 2}, 1), (std::vector<MatrixRound>{{2}, {0}}));
  const Mesh mesh = tensor_mesh(2, 2, 1);
  const auto elements_on = [&](int rank) {
    return round_elements(mesh, Axes{kColumn, kRow}, {2, 0}, parameters, layouts, rank);
  };
  EXPECT_EQ(elements_on(0).sent_to, (std::vector<int64_t>{6, 2, 0, 0}));
  EXPECT_EQ(elements_on(0).received_from, (std::vector<int64_t>{6, 6, 6, 6}));
  EXPECT_EQ(elements_on(0).sent(), 2 + 18);
  EXPECT_EQ(elements_on(1).sent(), 6 + 6);
  EXPECT_EQ(elements_on(3).received_from, (std::vector<int64_t>{0, 0, 0, 0}));
  EXPECT_EQ(elements_on(3).sent(), 8);
  const OptimizerConfig muon{.name = "muon"};
  // The matrix before and after an iteration, and two squares of the smaller side; elsewhere the shards and their copy.
  EXPECT_EQ(temporary_elements(muon, {2, 0}, elements_on(0), parameters), 2 * 24 + 2 * 4 * 4);
  EXPECT_EQ(temporary_elements(muon, {2, 0}, elements_on(3), parameters), 2 * 8);
}

}  // namespace
}  // namespace orthant::muon_test
