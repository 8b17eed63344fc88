// The order of sums. For every size, split and transport, on threads and in processes, a sum has the bits of plain ATen
// from the first position to the last. bf16 and half are added in float32.
#include <unistd.h>

#include "launch/process.h"
#include "tests/comm/line.h"
#include "tests/support/program.h"

namespace orthant::order_test {
namespace {

// Multiples of a third: of three positions, the first is large, the second small, and the third minus the first. After
// adding and subtracting the large one, the remainder of the small one depends on the order. float32 keeps six bits of
// it, bf16 and half keep none.
at::Tensor summand(int rank, int64_t n, at::ScalarType type) {
  constexpr double kMagnitudes[] = {512, 1.0 / 512, -512};
  const at::Tensor values = at::remainder(at::arange(n, at::kDouble), 7) + (rank / 3 + 1) / 3.0;
  return (values * kMagnitudes[rank % 3]).to(type);
}

bool narrow(at::ScalarType type) { return type == at::kHalf || type == at::kBFloat16; }

at::Tensor sum_from(int first, const std::vector<at::Tensor>& inputs) {
  const int n = static_cast<int>(inputs.size());
  const auto of = [&](int i) { return inputs[static_cast<size_t>((first + i) % n)]; };
  const auto type = inputs[0].scalar_type();
  at::Tensor sum = narrow(type) ? of(0).to(at::kFloat) : of(0).clone();
  for (int i = 1; i < n; ++i) sum.add_(of(i));
  return sum.to(type);
}

at::Tensor left_to_right(const std::vector<at::Tensor>& inputs) { return sum_from(0, inputs); }

// The order of a ring algorithm: the chunk of position c is summed from position c + 1 on.
at::Tensor round_a_ring(const std::vector<at::Tensor>& inputs) {
  const int n = static_cast<int>(inputs.size());
  const auto counts = balanced(inputs[0].numel(), n);
  std::vector<at::Tensor> chunks;
  for (int c = 0; c < n; ++c) chunks.push_back(chunk(sum_from(c + 1, inputs), counts, c));
  return at::cat(chunks);
}

std::vector<at::Tensor> summands(int n, int64_t size, at::ScalarType type) {
  std::vector<at::Tensor> inputs;
  for (int rank = 0; rank < n; ++rank) inputs.push_back(summand(rank, size, type));
  return inputs;
}

struct Example {
  std::vector<at::Tensor> inputs;
  at::Tensor sum;
};

// Sizes around the thresholds at which the algorithm changes.
std::vector<Example> examples(int n) {
  std::vector<Example> all;
  const auto add = [&](int64_t size, at::ScalarType type) {
    all.push_back({.inputs = summands(n, size, type)});
    all.back().sum = left_to_right(all.back().inputs);
  };
  for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble}) {
    const int64_t whole = (16 << 10) / static_cast<int64_t>(c10::elementSize(type));
    for (const int64_t size : {int64_t{1}, int64_t{1001}, whole, whole + 1}) add(size, type);
  }
  add(n * 150001, at::kFloat);  // two segments per rank
  add(n * 300001, at::kBFloat16);
  return all;
}

void expect_order(Comm& comm, int rank, const Example& example) {
  const int n = comm.group_size(kOverData);
  const at::Tensor &expected = example.sum, &mine = example.inputs[static_cast<size_t>(rank)];
  const int64_t size = expected.numel();
  const auto type = expected.scalar_type();
  const std::string where = fmt::format("{} of {}, {} ranks", size, c10::toString(type), n);

  at::Tensor whole = mine.clone();
  comm.all_reduce(whole, kOverData).wait();
  EXPECT_TRUE(same_bits(whole, expected)) << "all_reduce, " << where;

  at::Tensor pieces = mine.clone();
  const std::vector<int64_t> cuts = {size / 5, size / 3, 0, size - size / 5 - size / 3};
  std::vector<Work> works;
  for (int i = 0; i < 4; ++i) works.push_back(comm.all_reduce(chunk(pieces, cuts, i), kOverData));
  for (Work& work : works) work.wait();
  EXPECT_TRUE(same_bits(pieces, expected)) << "all_reduce in pieces, " << where;

  for (const auto& counts : {balanced(size, n), lumpy(size, n)}) {
    at::Tensor part = at::empty({counts[static_cast<size_t>(rank)]}, type), all = at::empty({size}, type);
    comm.reduce_scatter(part, mine, kOverData, counts).wait();
    comm.all_gather(all, part, kOverData, counts).wait();
    EXPECT_TRUE(same_bits(all, expected)) << "reduce_scatter and all_gather, " << where;
  }

  at::Tensor at_root = mine.clone();
  at::Tensor in_chunks = mine.clone();
  comm.reduce_in_chunks(in_chunks, kOverData, n - 1).wait();
  comm.reduce(at_root, kOverData, n - 1).wait();
  EXPECT_TRUE(same_bits(in_chunks, at_root)) << "reduce_in_chunks, " << where;
  comm.broadcast(at_root, kOverData, n - 1).wait();
  EXPECT_TRUE(same_bits(at_root, expected)) << "reduce and broadcast, " << where;
}

class Order : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (lacks(GetParam())) GTEST_SKIP() << ucx_problem();
  }
};
INSTANTIATE_TEST_SUITE_P(Over, Order, testing::Values("ucx", "gloo"), [](const auto& one) { return one.param; });

TEST_P(Order, SumsFollowPositionsOnThreads) {
  for (const int n : {2, 3, 6}) {
    const auto all = examples(n);
    on_line(n, [&](Comm& comm, int rank) {
      for (const Example& example : all) expect_order(comm, rank, example);
    }, GetParam());
  }
}

// This program also runs as the ranks.
TEST_P(Order, SumsFollowPositionsInProcesses) {
  constexpr int n = 3;
  const std::string part = fmt::format("--gtest_filter=Over/Order.DISABLED_Rank/{}", GetParam());
  const std::string port = std::to_string(Store::serve(0, 5).port());
  std::vector<std::unique_ptr<Program>> ranks;
  for (int rank = 0; rank < n; ++rank) {
    ranks.push_back(std::make_unique<Program>(
        std::vector<std::string>{this_program(), part, "--gtest_also_run_disabled_tests"},
        std::map<std::string, std::string>{{"RANK", std::to_string(rank)}, {"WORLD_SIZE", std::to_string(n)},
                                           {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", port},
                                           {"OMP_NUM_THREADS", "1"}}));
  }
  for (const auto& rank : ranks) EXPECT_EQ(rank->exit_code(), 0) << rank->output();
}

TEST_P(Order, DISABLED_Rank) {
  die_with_parent();
  const Launch launch = detect_launch(process_environment, parent_identity()).value();
  {
    Comm comm(line(launch.world_size), launch.rank, connect(launch), over(GetParam()));
    EXPECT_EQ(comm.transport(), GetParam());
    for (const Example& example : examples(launch.world_size)) expect_order(comm, launch.rank, example);
  }
  std::fflush(nullptr);
  _exit(HasFailure());
}

// Negative control of the data: another order, or rounding after every addition, gives other bits.
TEST(OrderControl, AnotherOrderIsOtherBits) {
  for (const int n : {3, 6}) {
    for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble}) {
      const auto inputs = summands(n, 1001, type);
      const at::Tensor expected = left_to_right(inputs);
      EXPECT_FALSE(same_bits(round_a_ring(inputs), expected)) << n << ", " << c10::toString(type);
      at::Tensor hop_by_hop = inputs[0].clone();
      for (int i = 1; i < n; ++i) hop_by_hop.add_(inputs[static_cast<size_t>(i)]);
      EXPECT_EQ(same_bits(hop_by_hop, expected), !narrow(type)) << n << ", " << c10::toString(type);
    }
  }
}

}  // namespace
}  // namespace orthant::order_test
