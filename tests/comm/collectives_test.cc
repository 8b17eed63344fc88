// Every collective on 1 to 8 thread ranks, in several dtypes, against its definition; and the counters against the
// formulas.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <numeric>

#include "base/errors.h"
#include "comm/comm.h"
#include "comm/thread_ranks.h"
#include "mesh/collective.h"

namespace orthant {
namespace {

const at::ScalarType kTypes[] = {at::kFloat, at::kDouble, at::kBFloat16, at::kLong};
const Axes kData = {"data"};

Mesh line(int n) { return Mesh({{"data", n}}); }
CommOptions quick() { return {.timeout_s = 20, .meet_timeout_s = 20}; }

// Small whole numbers, so that sums are exact in every dtype: a different tensor for each rank.
at::Tensor numbers(int rank, int64_t n, at::ScalarType type) {
  return ((at::arange(n, at::kLong) * 7 + rank * 3) % 5 - 2).to(type);
}

void on_line(int n, const std::function<void(Comm&, int)>& fn) {
  run_ranks(n, [&](Rendezvous rendezvous, int rank) {
    Comm comm(line(n), rank, rendezvous, quick());
    fn(comm, rank);
  });
}

class Ranks : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(OneToEight, Ranks, testing::Values(1, 2, 3, 4, 8));

TEST_P(Ranks, AllReduceSumsOnAllRanks) {
  const int n = GetParam();
  on_line(n, [&](Comm& comm, int rank) {
    for (const auto type : kTypes) {
      for (const int64_t size : {1, 5, 1000}) {
        at::Tensor expected = at::zeros({size}, type);
        for (int r = 0; r < n; ++r) expected += numbers(r, size, type);
        at::Tensor mine = numbers(rank, size, type);
        comm.all_reduce(mine, kData).wait();
        EXPECT_TRUE(equal(mine, expected)) << n << " ranks, " << size;
      }
    }
  });
}

TEST_P(Ranks, ReduceScatterAndAllGatherWithUnevenShards) {
  const int n = GetParam();
  on_line(n, [&](Comm& comm, int rank) {
    for (const auto type : kTypes) {
      for (const int64_t size : {int64_t{8} * n, int64_t{3}, int64_t{10} * n + 1}) {
        std::vector<int64_t> counts;
        for (int r = 0; r < n; ++r) counts.push_back(shard(size, n, r).size());
        const Range own = shard(size, n, rank);
        at::Tensor sum = at::zeros({size}, type);
        for (int r = 0; r < n; ++r) sum += numbers(r, size, type);

        at::Tensor part = at::empty({own.size()}, type);
        comm.reduce_scatter(part, numbers(rank, size, type), kData, counts).wait();
        EXPECT_TRUE(equal(part, sum.slice(0, own.begin, own.end)));

        at::Tensor all = at::empty({size}, type);
        comm.all_gather(all, part, kData, counts).wait();
        EXPECT_TRUE(equal(all, sum)) << n << " ranks, " << size;
      }
    }
  });
}

TEST_P(Ranks, AllToAllWithUnevenSplits) {
  const int n = GetParam();
  // Rank a sends (a + 2 b) % 4 elements to rank b, some of them none; element values name sender and receiver.
  const auto count = [](int a, int b) { return int64_t{(a + 2 * b) % 4}; };
  on_line(n, [&](Comm& comm, int rank) {
    std::vector<int64_t> sent, received;
    std::vector<at::Tensor> out, expected;
    for (int other = 0; other < n; ++other) {
      const bool self = other == rank;
      sent.push_back(self ? 1 : count(rank, other));
      received.push_back(self ? 1 : count(other, rank));
      out.push_back(at::full({sent.back()}, rank * 10 + other, at::kDouble));
      expected.push_back(at::full({received.back()}, other * 10 + rank, at::kDouble));
    }
    const at::Tensor input = at::cat(out);
    at::Tensor output = at::empty({std::reduce(received.begin(), received.end())}, at::kDouble);
    comm.all_to_all(output, input, kData, received, sent).wait();
    EXPECT_TRUE(equal(output, at::cat(expected)));
    const int64_t leaving = n == 1 ? 0 : (input.numel() - 1) * 8;
    EXPECT_EQ(comm.total_traffic().bytes, leaving);
  });
}

TEST_P(Ranks, BroadcastFromEveryRootAndBarrier) {
  const int n = GetParam();
  on_line(n, [&](Comm& comm, int rank) {
    for (int root = 0; root < n; ++root) {
      for (const auto type : kTypes) {
        at::Tensor mine = numbers(rank, 17, type);
        comm.broadcast(mine, kData, root).wait();
        EXPECT_TRUE(equal(mine, numbers(root, 17, type)));
      }
    }
    comm.barrier(kData).wait();
  });
}

TEST(Collectives, SendAndReceiveRoundARingMatchByTag) {
  constexpr int n = 4;
  on_line(n, [&](Comm& comm, int rank) {
    const at::Tensor first = numbers(rank, 100, at::kBFloat16), second = numbers(rank + 10, 3, at::kLong);
    at::Tensor first_in = at::empty_like(first), second_in = at::empty_like(second);
    const int next = (rank + 1) % n, previous = (rank + n - 1) % n;
    std::vector<Work> works;
    works.push_back(comm.recv(second_in, kData, previous, 2));  // in another order than they are sent
    works.push_back(comm.recv(first_in, kData, previous, 1));
    works.push_back(comm.send(first, kData, next, 1));
    works.push_back(comm.send(second, kData, next, 2));
    for (auto& work : works) work.wait();
    EXPECT_TRUE(equal(first_in, numbers(previous, 100, at::kBFloat16)));
    EXPECT_TRUE(equal(second_in, numbers(previous + 10, 3, at::kLong)));
    const auto key = std::make_pair(std::string("data"), std::string("send"));
    EXPECT_EQ(comm.traffic().at(key), (Traffic{2, 200 + 24}));
  });
}

TEST(Collectives, GroupsOverOneAndSeveralAxes) {
  const Mesh mesh({{"tensor", 2}, {"ring", 2}, {"data", 2}});
  run_ranks(8, [&](Rendezvous rendezvous, int rank) {
    Comm comm(mesh, rank, rendezvous, quick());
    const Axes every[] = {{"tensor"}, {"data"}, {"data", "tensor"}, {"tensor", "data"}, {"tensor", "ring", "data"}, {}};
    for (const Axes& axes : every) {
      const auto group = mesh.group(rank, axes);
      at::Tensor sum = at::full({3}, 1 << rank, at::kLong);
      comm.all_reduce(sum, axes).wait();
      int64_t expected = 0;
      for (const int member : group) expected += 1 << member;
      EXPECT_EQ(sum[2].item<int64_t>(), expected);
      EXPECT_EQ(comm.group_size(axes), static_cast<int>(group.size()));
      EXPECT_EQ(group[static_cast<size_t>(comm.position(axes))], rank);
    }
    // Both spellings of tensor and data are one group; the group of one rank counted nothing.
    EXPECT_EQ(comm.traffic().size(), 4u);
    EXPECT_EQ(comm.traffic().at({"tensor+data", "all_reduce"}).calls, 2);
  });
}

TEST(Collectives, CountersEqualTheFormulasOfTheMesh) {
  for (const int n : {1, 2, 3, 5}) {
    const Mesh mesh = line(n);
    const std::vector<int64_t> shape{4, 7};  // 28 elements, split on dim 1: uneven on 2, 3 and 5 ranks
    on_line(n, [&](Comm& comm, int rank) {
      const Layout split{.split = {{"data"}, {}}}, partial{.split = {{}, {}}, .partial = {"data"}};
      const auto formula = [&](CollectiveKind kind, const Layout& before, int from_dim, int to_dim) {
        return bytes_sent(mesh, {.kind = kind, .axis = "data", .from_dim = from_dim, .to_dim = to_dim}, before, shape,
                          4, rank);
      };
      std::vector<int64_t> counts;
      for (int r = 0; r < n; ++r) counts.push_back(shard(4, n, r).size() * 7);
      const at::Tensor full = at::ones({28});
      at::Tensor part = at::ones({counts[static_cast<size_t>(rank)]});
      const auto bytes = [&](const char* kind) { return n == 1 ? 0 : comm.traffic().at({"data", kind}).bytes; };
      comm.reduce_scatter(part, full, kData, counts).wait();
      EXPECT_EQ(bytes("reduce_scatter"), formula(CollectiveKind::reduce_scatter, partial, -1, 0));
      comm.all_gather(full, part, kData, counts).wait();
      EXPECT_EQ(bytes("all_gather"), formula(CollectiveKind::all_gather, split, 0, -1));
      comm.all_reduce(full, kData).wait();
      EXPECT_EQ(bytes("all_reduce"), formula(CollectiveKind::all_reduce, partial, -1, -1));
      comm.broadcast(full, kData).wait();
      EXPECT_EQ(bytes("broadcast"), formula(CollectiveKind::broadcast, whole(2), -1, -1));
      EXPECT_EQ(comm.total_traffic().calls, n == 1 ? 0 : 4);
    });
  }
}

TEST(Collectives, ManyOperationsUnderWay) {
  on_line(3, [&](Comm& comm, int rank) {
    std::vector<at::Tensor> tensors;
    std::vector<Work> works;
    for (int i = 0; i < 20; ++i) {
      tensors.push_back(at::full({50}, rank + i, at::kDouble));
      works.push_back(comm.all_reduce(tensors.back(), kData));
    }
    for (auto it = works.rbegin(); it != works.rend(); ++it) it->wait();
    for (int i = 0; i < 20; ++i) EXPECT_EQ(tensors[static_cast<size_t>(i)][7].item<double>(), 3 + 3 * i);
    works.back().wait();  // a second time: nothing
    EXPECT_GE(comm.exposed_wait_s(), 0.0);
  });
}

TEST(Collectives, ADroppedWorkIsCompleteWhenItsCommHasEnded) {
  std::vector<at::Tensor> tensors{at::ones({10}), at::ones({10}), at::ones({10})};
  on_line(3, [&](Comm& comm, int rank) {
    { Work forgotten = comm.all_reduce(tensors[static_cast<size_t>(rank)], kData); }
    comm.barrier(kData).wait();
  });
  for (const at::Tensor& tensor : tensors) EXPECT_EQ(tensor[9].item<float>(), 3);
}

TEST(Collectives, TensorsThatCannotBeSentAreRefused) {
  on_line(2, [&](Comm& comm, int) {
    EXPECT_THROW((void)comm.all_reduce(at::ones({4, 4}).t(), kData), LogicError);
    EXPECT_THROW((void)comm.all_reduce(at::Tensor(), kData), LogicError);
    at::Tensor two = at::empty({2}), four = at::empty({4});
    EXPECT_THROW((void)comm.all_gather(four, at::ones({2}, at::kDouble), kData), LogicError);
    EXPECT_THROW((void)comm.all_gather(four, at::ones({1}), kData), LogicError);
    EXPECT_THROW((void)comm.reduce_scatter(two, at::ones({5}), kData), LogicError);
    const int64_t counts[] = {1, 2};
    EXPECT_THROW((void)comm.reduce_scatter(two, four, kData, counts), LogicError);
    EXPECT_THROW((void)comm.all_reduce(four, {"tensor"}), LogicError);
    EXPECT_THROW((void)comm.send(four, kData, comm.rank()), LogicError);
    comm.barrier(kData).wait();
  });
}

// The checks above can fail: a reduction that one rank leaves out is seen.
TEST(Collectives, ALeftOutReductionIsSeen) {
  on_line(2, [&](Comm& comm, int rank) {
    at::Tensor mine = numbers(rank, 5, at::kDouble);
    const at::Tensor sum = numbers(0, 5, at::kDouble) + numbers(1, 5, at::kDouble);
    EXPECT_FALSE(equal(mine, sum));
    comm.barrier(kData).wait();
  });
}

}  // namespace
}  // namespace orthant
