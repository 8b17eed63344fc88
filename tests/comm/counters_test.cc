// Byte counters equal the formulas of mesh/collective.h for every operation. Work::wait() compares them with the bytes
// of the messages that were really sent.
#include "base/errors.h"
#include "comm/comm_state.h"
#include "mesh/collective.h"
#include "tests/comm/line.h"

namespace orthant::counters_test {
namespace {

class Counters : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (lacks(GetParam())) GTEST_SKIP() << ucx_problem();
  }
};
INSTANTIATE_TEST_SUITE_P(Over, Counters, testing::Values("ucx", "gloo", "staged"),
                         [](const auto& one) { return one.param; });

TEST_P(Counters, EqualTheFormulasOfTheMesh) {
  // Sharded on dim 0 (unevenly on 3 and 5 ranks), then on dim 1; once small, once several segments per rank.
  for (const int64_t width : {7, 200003}) {
    for (const int n : {1, 2, 3, 5}) {
      const std::vector<int64_t> shape{4, width};
      on_line(n, [&](Comm& comm, int rank) {
        const Layout rows{.split = {{"data"}, {}}}, partial{.split = {{}, {}}, .partial = {"data"}};
        const auto expect = [&](CollectiveKind kind, const Layout& from, int from_dim, int to_dim) {
          const Moved formula = bytes_moved(
              line(n), {.kind = kind, .axis = "data", .from_dim = from_dim, .to_dim = to_dim}, from, shape, 4, rank);
          const std::string name(name_of(kind));
          const Traffic counted = n == 1 ? Traffic{1, {}} : comm.traffic().at({"data", name});
          EXPECT_EQ(counted, (Traffic{1, formula})) << name << ", " << n << " ranks";
        };
        std::vector<int64_t> counts, to_columns, from_rows;
        for (int r = 0; r < n; ++r) counts.push_back(shard(4, n, r).size() * width);
        const int64_t own_rows = shard(4, n, rank).size(), own_columns = shard(width, n, rank).size();
        for (int r = 0; r < n; ++r) to_columns.push_back(own_rows * shard(width, n, r).size());
        for (int r = 0; r < n; ++r) from_rows.push_back(shard(4, n, r).size() * own_columns);
        at::Tensor full = at::ones({4 * width}), part = at::ones({counts[static_cast<size_t>(rank)]});

        comm.reduce_scatter(part, full, kOverData, counts).wait();
        expect(CollectiveKind::reduce_scatter, partial, -1, 0);
        comm.all_gather(full, part, kOverData, counts).wait();
        expect(CollectiveKind::all_gather, rows, 0, -1);
        comm.all_to_all(at::empty({4 * own_columns}), part, kOverData, from_rows, to_columns).wait();
        expect(CollectiveKind::all_to_all, rows, 0, 1);
        comm.all_reduce(full, kOverData).wait();
        expect(CollectiveKind::all_reduce, partial, -1, -1);
        comm.broadcast(full, kOverData).wait();
        expect(CollectiveKind::broadcast, unsharded_layout(2), -1, -1);
        comm.reduce(full, kOverData).wait();
        expect(CollectiveKind::reduce, unsharded_layout(2), -1, -1);
        comm.reduce_in_chunks(full, kOverData).wait();
        expect(CollectiveKind::reduce_in_chunks, unsharded_layout(2), -1, -1);
        comm.shift(at::empty_like(full), full, kOverData).wait();
        expect(CollectiveKind::shift, unsharded_layout(2), -1, -1);
        EXPECT_EQ(comm.total_traffic().calls, n == 1 ? 0 : 8);
        comm.barrier(kOverData).wait();
        EXPECT_EQ(n == 1 ? (Traffic{1, {}}) : comm.traffic().at({"data", "barrier"}), (Traffic{1, {}}));
      }, GetParam());
    }
  }
}

// Negative control: a counter that differs from the bytes sent or received is a LogicError.
TEST_P(Counters, MismatchWithTheMessagesIsLogicError) {
  run_ranks(2, [](Rendezvous rendezvous, int rank) {
    auto state = std::make_shared<CommState>(line(2), rank, rendezvous, over(GetParam()));
    OpenGroup& group = state->open(kOverData);
    at::Tensor tensor = at::ones({100});
    const auto count = [&](const Moved& bytes) {
      state->start({&group, "all_reduce", 400}, bytes, [&](Group& g) { return g.all_reduce(tensor, 0); }).wait();
    };
    count({400, 400});
    EXPECT_THROW(count({396, 400}), LogicError);
    EXPECT_THROW(count({400, 404}), LogicError);
    state->close(false);
  });
}

}  // namespace
}  // namespace orthant::counters_test
