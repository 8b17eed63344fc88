// Operations over several axes at once, on ranks that arrive late and wait in any order: every result is exact, and no
// rank hangs. A seed shared by all ranks draws the operations; a seed of each rank's own draws the delays.
#include <array>
#include <chrono>
#include <thread>

#include "tests/comm/line.h"
#include "tests/support/random.h"
#include "tests/support/sweep.h"

namespace orthant::delays_test {
namespace {

const Mesh kCube({{"tensor", 2}, {"ring", 2}, {"data", 2}});
const Axes kGroups[] = {{"tensor"},         {"ring"},         {"data"},
                        {"tensor", "ring"}, {"ring", "data"}, {"tensor", "ring", "data"}};

// An operation in progress, and its expected result.
struct Started {
  Work work;
  at::Tensor result, expected;
};

struct Rounds {
  int count;
  std::array<int64_t, 4> sizes = {1, 300, 5000, 20000};
  int pause_us = 200;  // upper bound of the pause before each operation
};

// A rank's read-only input to an operation. It is a piece of one table of integers, so that sums are exact. Its offset
// depends on rank and seed. Drawing new numbers would take longer than the operations under test.
at::Tensor brought(int rank, int seed, int64_t size) {
  constexpr int64_t kMost = 1200000;
  static const at::Tensor table = (at::arange(kMost + 100, at::kLong) * 7919 % 4093 % 11 - 5).to(at::kFloat);
  return table.narrow(0, rank * 11 + seed, size);
}

// Starts one operation over one of the groups. `random` must be in the same state on all ranks.
Started start_any(Comm& comm, const Rounds& rounds, Random& random) {
  const Axes& axes = kGroups[random.below(6)];
  const int64_t size = rounds.sizes[static_cast<size_t>(random.below(4))];
  const int seed = random.below(5), kind = random.below(9), draw = random.below(64);

  const std::vector<int> group = kCube.group(comm.rank(), axes);
  const int n = static_cast<int>(group.size()), position = comm.position(axes);
  const auto of = [&](int p) { return brought(group[static_cast<size_t>((p % n + n) % n)], seed, size); };
  const auto sum_of_all = [&] {
    at::Tensor sum = of(0).clone();
    for (int p = 1; p < n; ++p) sum.add_(of(p));
    return sum;
  };
  const auto counts = lumpy(size, n);
  const at::Tensor mine = of(position).clone();
  const int root = draw % n;

  Started s;
  switch (kind) {
    case 0:
      s.result = mine, s.expected = sum_of_all();
      s.work = comm.all_reduce(s.result, axes);
      break;
    case 1:
      s.expected = chunk(sum_of_all(), counts, position), s.result = at::zeros_like(s.expected);
      s.work = comm.reduce_scatter(s.result, mine, axes, counts);
      break;
    case 2:
      s.expected = sum_of_all(), s.result = at::zeros_like(s.expected);
      s.work = comm.all_gather(s.result, chunk(s.expected, counts, position), axes, counts);
      break;
    case 3:
      s.result = mine, s.expected = of(root);
      s.work = comm.broadcast(s.result, axes, root);
      break;
    case 4:
      s.result = mine, s.expected = position == root ? sum_of_all() : of(position);
      s.work = comm.reduce(s.result, axes, root);
      break;
    case 7:
      s.result = mine, s.expected = position == root ? sum_of_all() : of(position);
      s.work = comm.reduce_in_chunks(s.result, axes, root);
      break;
    case 5:
      s.result = at::zeros_like(mine), s.expected = of(position - 1 - root);
      s.work = comm.shift(s.result, mine, axes, 1 + root);
      break;
    case 6: {
      std::vector<at::Tensor> pieces;
      const auto even = balanced(size * n, n);  // each rank sends its full tensor to every rank
      for (int p = 0; p < n; ++p) pieces.push_back(of(p));
      s.expected = at::cat(pieces), s.result = at::zeros_like(s.expected);
      s.work = comm.all_to_all(s.result, mine.repeat({n}), axes, even, even);
      break;
    }
    default:
      s.work = comm.barrier(axes);
  }
  return s;
}

void shuffle(std::vector<Started>& all, Random& random) {
  for (size_t i = all.size(); i > 1; --i) std::swap(all[i - 1], all[random.next() % i]);
}

void run_rounds(const std::string& transport, const Rounds& rounds) {
  run_ranks(kCube.size(), [&](Rendezvous rendezvous, int rank) {
    Comm comm(kCube, rank, rendezvous, over(transport));
    Random shared(17), own(100 + static_cast<uint64_t>(rank));
    for (int round = 0; round < rounds.count && !testing::Test::HasFailure(); ++round) {
      std::vector<Started> started;
      const int operations = 3 + shared.below(5);
      for (int i = 0; i < operations; ++i) {
        std::this_thread::sleep_for(std::chrono::microseconds(own.below(rounds.pause_us + 1)));
        started.push_back(start_any(comm, rounds, shared));
      }
      shuffle(started, own);
      for (Started& one : started) {
        one.work.wait();
        if (!one.result.defined()) continue;  // a barrier
        EXPECT_TRUE(equal(one.result, one.expected)) << "round " << round << ", rank " << rank;
      }
    }
  });
}

SWEEP_TEST(Delays, ManyRoundsOverUcx) {
  if (lacks("ucx")) GTEST_SKIP() << ucx_problem();
  run_rounds("ucx", {.count = sweep.of(std::vector{1000, 200}, 1)[0]});
}

SWEEP_TEST(Delays, ManyRoundsOverGloo) { run_rounds("gloo", {.count = sweep.of(std::vector{100, 40}, 1)[0]}); }

// Chunks of several segments, and absences of up to 20 ms, so that the engine's background threads take over.
constexpr Rounds kLong{.count = 15, .sizes = {1, 20000, 300000, 1200000}, .pause_us = 20000};

TEST(Delays, LongAbsencesOverUcx) {
  if (lacks("ucx")) GTEST_SKIP() << ucx_problem();
  run_rounds("ucx", kLong);
}

TEST(Delays, LongAbsencesOverGloo) { run_rounds("gloo", kLong); }

}  // namespace
}  // namespace orthant::delays_test
