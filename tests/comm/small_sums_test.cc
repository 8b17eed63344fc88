// Sums of few elements over many ranks: they have the bits of the direct algorithm, over both transports and over any
// axes, and every rank has few neighbors and sends the planned bytes.
#include <bit>
#include <cmath>
#include <mutex>

#include "base/errors.h"
#include "mesh/collective.h"
#include "tests/comm/line.h"
#include "tests/support/says.h"

namespace orthant::small_sums_test {
namespace {

// Numbers of very different magnitudes, so that another order of additions gives other bits.
at::Tensor summand(int rank, int64_t n, at::ScalarType type) {
  const at::Tensor digits = at::remainder(at::arange(n, at::kDouble) * 7 + rank * 13, 101) + 0.1;
  return (digits * std::pow(10.0, rank * 5 % 7 - 3)).to(type);
}

at::Tensor left_to_right(const std::vector<int>& ranks, int64_t n, at::ScalarType type) {
  at::Tensor sum = summand(ranks[0], n, type);
  for (size_t i = 1; i < ranks.size(); ++i) sum.add_(summand(ranks[i], n, type));
  return sum;
}

std::vector<int> up_to(int n) {
  std::vector<int> ranks;
  for (int rank = 0; rank < n; ++rank) ranks.push_back(rank);
  return ranks;
}

int log2_of(int n) { return std::bit_width(static_cast<unsigned>(n - 1)); }

// Runs one thread per rank of the mesh.
void on_mesh(const Mesh& mesh, const std::string& transport, const std::function<void(Comm&, int)>& fn) {
  run_ranks(mesh.size(), [&](Rendezvous rendezvous, int rank) {
    Comm comm(mesh, rank, rendezvous, over(transport));
    fn(comm, rank);
  });
}

class SmallSums : public testing::TestWithParam<std::tuple<const char*, int>> {
 protected:
  void SetUp() override {
    if (lacks(std::get<0>(GetParam()))) GTEST_SKIP() << ucx_problem();
  }
};
std::string name_of_case(const testing::TestParamInfo<std::tuple<const char*, int>>& one) {
  return fmt::format("{}_{}_ranks", std::get<0>(one.param), std::get<1>(one.param));
}
INSTANTIATE_TEST_SUITE_P(Over, SmallSums,
                         testing::Combine(testing::Values("ucx", "gloo"), testing::Values(2, 8, 9, 17)), name_of_case);
INSTANTIATE_TEST_SUITE_P(Chain, SmallSums, testing::Combine(testing::Values("ucx"), testing::Values(65)), name_of_case);

TEST_P(SmallSums, HaveTheBitsOfTheDirectAlgorithm) {
  const auto [transport, n] = GetParam();
  struct Example {
    int64_t size;
    at::ScalarType type;
    at::Tensor expected = {};
  };
  std::vector<Example> examples = {{1, at::kDouble}, {41, at::kDouble}, {2000, at::kFloat}, {0, at::kFloat}};
  for (Example& e : examples) e.expected = left_to_right(up_to(n), e.size, e.type);
  on_line(
      n,
      [&](Comm& comm, int rank) {
        Moved bytes;
        for (const Example& e : examples) {
          at::Tensor small = summand(rank, e.size, e.type);
          comm.all_reduce_small(small, kOverData).wait();
          EXPECT_TRUE(same_bits(small, e.expected)) << e.size << ", rank " << rank;
          const int64_t elements[] = {e.size};
          bytes += small.element_size() * elements_moved(small_sum(n), n, rank, elements);
        }
        EXPECT_EQ(comm.traffic().at({"data", std::string(name_of(small_sum(n)))}), (Traffic{4, bytes})) << rank;
        for (const Example& e : examples) {
          if (n > 20) break;  // n threads would exchange 2 n^2 messages
          at::Tensor direct = summand(rank, e.size, e.type);
          comm.all_reduce(direct, kOverData).wait();
          EXPECT_TRUE(same_bits(direct, e.expected)) << e.size << ", rank " << rank;
        }
      },
      transport);
}

// The maxima end, or are, the chunk of the last rank, or reach into the chunk before it. At 2,100 elements, two ranks
// also cut the tensor into chunks.
TEST_P(SmallSums, TakeTheLargestOfTheLastElements) {
  const auto [transport, n] = GetParam();
  for (const auto& [size, maxima] : std::vector<std::pair<int64_t, int64_t>>{{1, 1}, {25, 1}, {25, 5}, {2100, 300}}) {
    const at::Tensor sum = left_to_right(up_to(n), size, at::kDouble), expected = sum.clone();
    at::Tensor largest = summand(0, size, at::kDouble);
    for (int rank = 1; rank < n; ++rank) largest = at::maximum(largest, summand(rank, size, at::kDouble));
    expected.narrow(0, size - maxima, maxima).copy_(largest.narrow(0, size - maxima, maxima));
    EXPECT_TRUE((sum != expected).narrow(0, size - maxima, maxima).all().item<bool>());
    on_line(
        n,
        [&](Comm& comm, int rank) {
          at::Tensor small = summand(rank, size, at::kDouble);
          comm.all_reduce_small(small, kOverData, maxima).wait();
          EXPECT_TRUE(same_bits(small, expected)) << size << ", rank " << rank;
        },
        transport);
  }
}

// Negative control of the data: in the order of a binomial tree that adds on the way, the bits are others.
TEST(SmallSumsControl, AnotherOrderIsOtherBits) {
  for (const int n : {9, 17, 70}) {
    std::vector<at::Tensor> partial;
    for (int rank = 0; rank < n; ++rank) partial.push_back(summand(rank, 41, at::kDouble));
    for (int distance = 1; distance < n; distance *= 2) {
      for (int i = 0; i + distance < n; i += 2 * distance) {
        partial[static_cast<size_t>(i)].add_(partial[static_cast<size_t>(i + distance)]);
      }
    }
    EXPECT_FALSE(same_bits(partial[0], left_to_right(up_to(n), 41, at::kDouble))) << n;
  }
}

TEST(SmallSums, RefuseDtypesWhoseSumsAreRounded) {
  on_line(9, [&](Comm& comm, int) {
    EXPECT_THROW((void)comm.all_reduce_small(at::ones({3}, at::kBFloat16), kOverData), LogicError);
    EXPECT_THROW((void)comm.all_reduce_small(at::ones({3}, at::kFloat), kOverData, 1), LogicError);
    at::Tensor flags = at::zeros({3}, at::kBool);
    flags[1] = comm.rank() == 5;
    comm.all_reduce_small(flags, kOverData).wait();
    EXPECT_TRUE(at::equal(flags.to(at::kLong), at::tensor({0, 1, 0}, at::kLong)));
  });
}

// A rank with another size or another operation is an error on some rank that names both, and no rank hangs.
TEST(SmallSums, DifferentProgramsAreSeen) {
  for (const bool other_size : {true, false}) {
    std::mutex mutex;
    std::string all;
    const auto one = [&](Comm& comm, int rank) {
      try {
        at::Tensor numbers = at::ones({rank == 6 && other_size ? 4 : 3}, at::kDouble);
        (rank == 6 && !other_size ? comm.all_reduce(numbers, kOverData) : comm.all_reduce_small(numbers, kOverData))
            .wait();
        comm.barrier(kOverData).wait();
      } catch (const CommError& error) {
        const std::lock_guard lock(mutex);
        all += error.what();
        throw;
      }
    };
    EXPECT_THROW(on_line(12, one), CommError);
    EXPECT_TRUE(says(all, {"the ranks do not run the same program", "all_reduce_by_tree"}));
  }
}

// The messages of each step of the ranks of a mesh: a ring along each axis, and a small sum over all ranks.
struct Step {
  Mesh mesh;
  bool direct = false;  // the sum over all ranks is a plain all_reduce
  at::Tensor expected = left_to_right(up_to(mesh.size()), elements(), at::kDouble);

  int64_t elements() const { return 24 + mesh.size(); }
  void operator()(Comm& comm, int rank) const {
    for (const Axis& axis : mesh.axes) {
      at::Tensor own = at::full({5}, rank, at::kDouble), other = at::empty({5}, at::kDouble);
      comm.shift(other, own, {axis.name}).wait();
    }
    at::Tensor sum = summand(rank, elements(), at::kDouble);
    const Axes axes = all_axes(mesh);
    (direct ? comm.all_reduce(sum, axes) : comm.all_reduce_small(sum, axes)).wait();
    EXPECT_TRUE(same_bits(sum, expected)) << "rank " << rank;
  }
  // Most connections of a rank after two steps.
  int most_connections(const std::string& transport) const {
    std::mutex mutex;
    int most = 0;
    on_mesh(mesh, transport, [&](Comm& comm, int rank) {
      for (int step = 0; step < 2; ++step) (*this)(comm, rank);
      const std::lock_guard lock(mutex);
      most = std::max(most, comm.num_connections());
    });
    return most;
  }
  int limit() const {
    int limit = 2 * log2_of(mesh.size());
    for (const Axis& axis : mesh.axes) limit += std::min(2, axis.size - 1);
    return limit;
  }
};

class Neighbors : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (lacks(GetParam())) GTEST_SKIP() << ucx_problem();
  }
};
INSTANTIATE_TEST_SUITE_P(Over, Neighbors, testing::Values("ucx", "gloo"), [](const auto& one) { return one.param; });

TEST_P(Neighbors, OfARankAreFew) {
  for (const Mesh& mesh : {Mesh({{"column", 2}, {"ring", 4}, {"data", 3}}), Mesh({{"data", 4}, {"pipeline", 8}})}) {
    const Step step{.mesh = mesh};
    const int most = step.most_connections(GetParam());
    EXPECT_LE(most, step.limit());
    EXPECT_GT(most, log2_of(mesh.size()) / 2);  // the count is of real connections
  }
  // Negative control: a direct sum needs all ranks.
  const Step direct{.mesh = Mesh({{"ring", 4}, {"data", 5}}), .direct = true};
  EXPECT_EQ(direct.most_connections(GetParam()), 19);
}

// A run of 256 ranks, each a thread.
TEST(ManyRanks, SumInOrderWithFewNeighbors) {
  if (lacks("ucx")) GTEST_SKIP() << ucx_problem();
  const Step step{.mesh = Mesh({{"column", 4}, {"data", 16}, {"pipeline", 4}})};
  EXPECT_LE(step.most_connections("ucx"), step.limit());
}

}  // namespace
}  // namespace orthant::small_sums_test
