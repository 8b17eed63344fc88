// Every collective on 1 to 9 ranks over both transports: sizes around every threshold of the algorithms, every dtype,
// uneven and empty shards, in place and not. The inputs are integers, so each result equals that of plain ATen exactly.
#include "tests/comm/line.h"

namespace orthant::every_collective_test {
namespace {

// Each rank's input, and the sum of all inputs.
struct Example {
  std::vector<at::Tensor> inputs;
  at::Tensor sum;

  const at::Tensor& of(int rank) const { return inputs[static_cast<size_t>(rank)]; }
  int n() const { return static_cast<int>(inputs.size()); }
  int64_t size() const { return sum.numel(); }
  std::string text() const {
    return fmt::format("{} ranks, {} of {}", n(), size(), c10::toString(sum.scalar_type()));
  }
  at::Tensor room(int64_t elements) const { return at::full({elements}, 7, sum.options()); }
  std::vector<int> roots() const { return n() < 3 ? std::vector{0, n() - 1} : std::vector{0, n() / 2, n() - 1}; }
};

Example example(int n, int64_t size, at::ScalarType type) {
  Example e;
  for (int rank = 0; rank < n; ++rank) e.inputs.push_back(numbers(rank, size, type));
  e.sum = e.inputs[0].clone();
  for (int rank = 1; rank < n; ++rank) e.sum.add_(e.of(rank));
  return e;
}

using Counting = std::vector<int64_t> (*)(int64_t, int);

void sums(Comm& comm, int rank, const Example& e) {
  at::Tensor everywhere = e.of(rank).clone();
  comm.all_reduce(everywhere, kOverData).wait();
  EXPECT_TRUE(equal(everywhere, e.sum)) << "all_reduce, " << e.text();

  for (const int root : e.roots()) {
    at::Tensor at_root = e.of(rank).clone();
    comm.reduce(at_root, kOverData, root).wait();
    EXPECT_TRUE(equal(at_root, rank == root ? e.sum : e.of(rank))) << "reduce to " << root << ", " << e.text();
    at::Tensor in_chunks = e.of(rank).clone();
    comm.reduce_in_chunks(in_chunks, kOverData, root).wait();
    EXPECT_TRUE(equal(in_chunks, at_root)) << "reduce_in_chunks to " << root << ", " << e.text();
  }

  for (const Counting counting : {&balanced, &lumpy}) {
    const auto counts = counting(e.size(), e.n());
    const at::Tensor expected = chunk(e.sum, counts, rank);
    at::Tensor part = e.room(expected.numel()), input = e.of(rank).clone();
    comm.reduce_scatter(part, input, kOverData, counts).wait();
    EXPECT_TRUE(equal(part, expected)) << "reduce_scatter, " << e.text();
    EXPECT_TRUE(equal(input, e.of(rank))) << "reduce_scatter wrote to its input, " << e.text();
    comm.reduce_scatter(chunk(input, counts, rank), input, kOverData, counts).wait();
    EXPECT_TRUE(equal(chunk(input, counts, rank), expected)) << "reduce_scatter in place, " << e.text();
  }
}

void gathers(Comm& comm, int rank, const Example& e) {
  for (const Counting counting : {&balanced, &lumpy}) {
    const auto counts = counting(e.size(), e.n());
    std::vector<at::Tensor> shards;
    for (int r = 0; r < e.n(); ++r) shards.push_back(chunk(e.of(r), counts, r));
    const at::Tensor expected = at::cat(shards);
    at::Tensor all = e.room(e.size());
    comm.all_gather(all, shards[static_cast<size_t>(rank)].clone(), kOverData, counts).wait();
    EXPECT_TRUE(equal(all, expected)) << "all_gather, " << e.text();
    all = e.room(e.size());
    chunk(all, counts, rank).copy_(shards[static_cast<size_t>(rank)]);
    comm.all_gather(all, chunk(all, counts, rank), kOverData, counts).wait();
    EXPECT_TRUE(equal(all, expected)) << "all_gather in place, " << e.text();
  }
  for (const int root : e.roots()) {
    at::Tensor tensor = e.of(rank).clone();
    comm.broadcast(tensor, kOverData, root).wait();
    EXPECT_TRUE(equal(tensor, e.of(root))) << "broadcast from " << root << ", " << e.text();
  }
}

// Elements that rank a sends to each rank: lumpy counts, rotated by a, so that the ranks split differently.
std::vector<int64_t> cut_by(int a, const Example& e) {
  const auto counts = lumpy(e.size(), e.n());
  std::vector<int64_t> turned;
  for (int b = 0; b < e.n(); ++b) turned.push_back(counts[static_cast<size_t>((a + b) % e.n())]);
  return turned;
}

void passes(Comm& comm, int rank, const Example& e) {
  const int n = e.n();
  std::vector<int64_t> received;
  std::vector<at::Tensor> pieces;
  for (int r = 0; r < n; ++r) {
    received.push_back(cut_by(r, e)[static_cast<size_t>(rank)]);
    pieces.push_back(chunk(e.of(r), cut_by(r, e), rank));
  }
  const at::Tensor expected = at::cat(pieces);
  at::Tensor came = e.room(expected.numel());
  comm.all_to_all(came, e.of(rank), kOverData, received, cut_by(rank, e)).wait();
  EXPECT_TRUE(equal(came, expected)) << "all_to_all, " << e.text();

  for (const int by : {1, -1, 2}) {
    const int from = ((rank - by) % n + n) % n;
    const auto part = [&](int r) { return e.of(r).narrow(0, 0, e.size() - e.size() * r / (2 * n)); };  // sizes differ
    came = e.room(part(from).numel());
    comm.shift(came, part(rank), kOverData, by).wait();
    EXPECT_TRUE(equal(came, part(from))) << "shift by " << by << ", " << e.text();
  }

  if (n == 1) return;
  const int next = (rank + 1) % n, previous = (rank + n - 1) % n;
  came = e.room(e.size());
  Work receives = comm.recv(came, kOverData, previous, 3), sends = comm.send(e.of(rank), kOverData, next, 3);
  sends.wait();
  receives.wait();
  EXPECT_TRUE(equal(came, e.of(previous))) << "send and recv, " << e.text();

  at::Tensor from_below = e.room(e.size()), from_above = e.room(e.size() / 2);
  const Transfer both[] = {{e.of(rank), next, false, 1},
                           {e.of(rank).narrow(0, 0, e.size() / 2), previous, false, 2},
                           {from_below, previous, true, 1},
                           {from_above, next, true, 2}};
  comm.exchange(both, kOverData).wait();
  EXPECT_TRUE(equal(from_below, e.of(previous))) << "exchange, " << e.text();
  EXPECT_TRUE(equal(from_above, e.of(next).narrow(0, 0, e.size() / 2))) << "exchange, " << e.text();
}

class EveryCollective : public testing::TestWithParam<std::tuple<const char*, int>> {
 protected:
  void SetUp() override {
    if (lacks(transport())) GTEST_SKIP() << ucx_problem();
  }
  std::string transport() const { return std::get<0>(GetParam()); }
  int ranks() const { return std::get<1>(GetParam()); }

  template <typename Check>
  void each(const std::vector<Example>& examples, Check check) {
    on_line(
        ranks(),
        [&](Comm& comm, int rank) {
          if (transport() != "staged") {
            EXPECT_EQ(comm.transport(), ranks() == 1 ? "" : transport());
          }
          for (const Example& e : examples) check(comm, rank, e);
          comm.barrier(kOverData).wait();
        },
        transport());
  }
};
std::string name_of(const testing::TestParamInfo<std::tuple<const char*, int>>& one) {
  return fmt::format("{}_{}_ranks", std::get<0>(one.param), std::get<1>(one.param));
}
INSTANTIATE_TEST_SUITE_P(OneToNine, EveryCollective,
                         testing::Combine(testing::Values("ucx", "gloo"), testing::Range(1, 10)), name_of);
INSTANTIATE_TEST_SUITE_P(Staged, EveryCollective,
                         testing::Combine(testing::Values("staged"), testing::Values(1, 2, 3, 5)), name_of);

// Sizes in bytes at which an algorithm changes: 16 KiB and 256 KiB of the full tensor, 512 KiB of a rank's chunk.
constexpr int64_t kThresholds[] = {16 << 10, 256 << 10, 512 << 10};

TEST_P(EveryCollective, OfEverySizeIsExact) {
  std::vector<Example> examples;
  for (const int64_t size : {0, 1, 3, 17, 999}) examples.push_back(example(ranks(), size, at::kFloat));
  for (const int64_t bytes : kThresholds) {
    for (const int64_t more : {-1, 0, 1}) examples.push_back(example(ranks(), bytes / 4 + more, at::kFloat));
  }
  each(examples, [](Comm& comm, int rank, const Example& e) {
    sums(comm, rank, e);
    gathers(comm, rank, e);
    if (e.size() <= (16 << 10) / 4 + 1) passes(comm, rank, e);  // only the first threshold applies to them
  });
}

class ManySegments : public EveryCollective {};
INSTANTIATE_TEST_SUITE_P(Some, ManySegments, testing::Combine(testing::Values("ucx", "gloo"), testing::Values(2, 3, 9)),
                         name_of);

TEST_P(ManySegments, AreExact) {
  const int64_t one_each = ranks() * (512 << 10) / 4;
  std::vector<Example> examples{example(ranks(), one_each + 1, at::kFloat)};
  if (ranks() < 9) {
    for (const int64_t size : {one_each - 1, one_each, 4 * one_each + 1}) {
      examples.push_back(example(ranks(), size, at::kFloat));
    }
  }
  each(examples, [](Comm& comm, int rank, const Example& e) {
    sums(comm, rank, e);
    gathers(comm, rank, e);
  });
}

// Transports move bytes whatever the dtype. For Gloo, one number of ranks is enough.
class EveryDtype : public EveryCollective {};
INSTANTIATE_TEST_SUITE_P(Ucx, EveryDtype, testing::Combine(testing::Values("ucx"), testing::Range(1, 10)), name_of);
INSTANTIATE_TEST_SUITE_P(Gloo, EveryDtype, testing::Combine(testing::Values("gloo"), testing::Values(3)), name_of);

TEST_P(EveryDtype, IsExact) {
  std::vector<Example> examples;
  for (const auto type : {at::kBool, at::kByte, at::kChar, at::kShort, at::kInt, at::kLong, at::kHalf, at::kBFloat16,
                          at::kFloat, at::kDouble, at::kComplexFloat, at::kComplexDouble}) {
    for (const int64_t size : {5, 20001}) examples.push_back(example(ranks(), size, type));
  }
  each(examples, [](Comm& comm, int rank, const Example& e) {
    sums(comm, rank, e);
    gathers(comm, rank, e);
    passes(comm, rank, e);
  });
}

}  // namespace
}  // namespace orthant::every_collective_test
