// NCCL. With n GPUs, every collective runs on up to n thread ranks, one GPU each, and is compared with Gloo's result on
// the CPU. With one GPU, a group of one rank runs the same code. Without a GPU, the refusals are checked.
#include <ATen/ATen.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <gtest/gtest.h>

#include "base/errors.h"
#include "comm/comm.h"
#include "comm/thread_ranks.h"
#include "launch/watch.h"
#include "mesh/layout.h"

namespace orthant::nccl_test {
namespace {


int gpus() { return has_nccl() ? static_cast<int>(at::detail::getCUDAHooks().deviceCount()) : 0; }
at::Device gpu(int index) { return {at::kCUDA, static_cast<at::DeviceIndex>(index)}; }

#define NEED_GPUS(n)                                                                   \
  if (!has_nccl()) GTEST_SKIP() << "this build has no NCCL: make build CUDA=1 has it"; \
  if (gpus() < (n)) GTEST_SKIP() << "GPUs needed: " << (n) << ", here: " << gpus()

// Multiples of a third, so that the order of a sum shows in the last bit.
at::Tensor numbers(int rank, int64_t n, at::ScalarType type) {
  return ((at::arange(n, at::kDouble) * 7 + rank * 3).remainder(5) / 3 - 0.7).to(type);
}

void on_gpus(int n, const std::function<void(Comm&, int, at::Device)>& fn) {
  run_ranks(n, [&](Rendezvous rendezvous, int rank) {
    Comm comm(Mesh({{"data", n}}), rank, rendezvous, {.timeout_s = 60, .connect_timeout_s = 60});
    fn(comm, rank, gpu(rank));
  });
}

TEST(Nccl, BuildWithoutNcclIsRefused) {
  if (has_nccl()) GTEST_SKIP() << "this build has NCCL";
  try {
    nccl_group(gpu(0), Store::in_process(), 0, 1, 60, [](const std::string&) {});
    FAIL() << "no error";
  } catch (const LogicError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("cuda:0"), std::string::npos) << text;
    EXPECT_NE(text.find("make build CUDA=1"), std::string::npos) << text;
  }
}

TEST(Nccl, ADeviceWithoutATransportIsRefused) {
  run_ranks(2, [&](Rendezvous rendezvous, int rank) {
    Comm comm(Mesh({{"data", 2}}), rank, rendezvous, {.timeout_s = 20, .connect_timeout_s = 20});
    const at::Tensor nowhere = at::empty({4}, at::TensorOptions().device(at::kMeta));
    EXPECT_THROW((void)comm.all_reduce(nowhere, kOverData), LogicError);
    at::Tensor here = at::ones({4});
    comm.all_reduce(here, kOverData).wait();  // the refusal left the Comm usable
    EXPECT_TRUE(equal(here, at::full({4}, 2.0f)));
  });
}

TEST(Nccl, AFailureOnAThreadOfTheTransportEndsTheRunOnce) {
  std::vector<std::pair<std::string, bool>> reported;
  Watch watch(Store::in_process(), "comm/0", 0, 1, 5, {.on_failure = [&](const std::string& message, bool must_report) {
                reported.emplace_back(message, must_report);
              }});
  watch.abort_and_end("NCCL's ALLREDUCE has not completed in time");
  watch.abort_and_end("the next operation failed too");
  const std::vector<std::pair<std::string, bool>> expected = {{"NCCL's ALLREDUCE has not completed in time", true}};
  EXPECT_EQ(reported, expected);
  EXPECT_EQ(watch.failure(), expected[0].first);
}

TEST(Nccl, AGroupOfOneRankRunsEveryOperation) {
  NEED_GPUS(1);
  const auto group = nccl_group(gpu(0), Store::in_process(), 0, 1, 60,
                                [](const std::string& reason) { ADD_FAILURE() << reason; });
  for (const auto type : {at::kFloat, at::kDouble, at::kBFloat16}) {
    const at::Tensor input = numbers(1, 100, type).to(gpu(0));
    const std::vector<int64_t> counts = {100};
    at::Tensor sum = input.clone(), part = at::empty_like(input), all = part.clone(), out = part.clone();
    group->all_reduce(sum, 0)->wait();
    group->reduce_scatter(part, input, counts)->wait();
    group->all_gather(all, input, counts)->wait();
    group->all_to_all(out, input, counts, counts)->wait();
    group->broadcast(sum, 0)->wait();
    group->reduce(sum, 0)->wait();
    for (const at::Tensor& result : {sum, part, all, out}) EXPECT_TRUE(equal(result, input));
  }
  const at::Tensor numbers_and_peak = numbers(1, 25, at::kDouble).to(gpu(0));
  for (const int64_t maxima : {0, 1, 25}) {
    at::Tensor ordered = numbers_and_peak.clone(), by_tree = numbers_and_peak.clone();
    group->all_reduce(ordered, maxima)->wait();
    group->all_reduce_by_tree(by_tree, maxima)->wait();
    EXPECT_TRUE(equal(ordered, numbers_and_peak));
    EXPECT_TRUE(equal(by_tree, numbers_and_peak));
  }
  group->exchange({})->wait();
  group->barrier()->wait();
  // Negative control: not a tensor of this group's device.
  EXPECT_THROW((void)group->all_reduce(at::ones({1}), 0), LogicError);
}

TEST(Nccl, OrderedSumsEqualGlooBitForBit) {
  NEED_GPUS(2);
  const int n = std::min(gpus(), 4);
  on_gpus(n, [&](Comm& comm, int rank, at::Device device) {
    for (const auto type : {at::kFloat, at::kDouble, at::kBFloat16}) {
      for (const int64_t size : {int64_t{8} * n, int64_t{3}, int64_t{10} * n + 1}) {
        std::vector<int64_t> counts;
        for (int r = 0; r < n; ++r) counts.push_back(shard(size, n, r).size());
        const at::Tensor input = numbers(rank, size, type), input_gpu = input.to(device);
        at::Tensor part = at::empty({counts[static_cast<size_t>(rank)]}, type), part_gpu = part.to(device);
        comm.reduce_scatter(part, input, kOverData, counts).wait();
        comm.reduce_scatter(part_gpu, input_gpu, kOverData, counts).wait();
        EXPECT_TRUE(equal(part_gpu.cpu(), part));

        at::Tensor all = at::empty({size}, type), all_gpu = all.to(device);
        comm.all_gather(all, part, kOverData, counts).wait();
        comm.all_gather(all_gpu, part_gpu, kOverData, counts).wait();
        EXPECT_TRUE(equal(all_gpu.cpu(), all));
        EXPECT_FALSE(equal(all_gpu.cpu(), input));  // negative control: something was summed
      }
    }
  });
}

// The last elements are maxima, whichever ranks own them.
TEST(Nccl, SmallSumsEqualThoseOnTheCpu) {
  NEED_GPUS(2);
  const int n = std::min(gpus(), 4);
  on_gpus(n, [&](Comm& comm, int rank, at::Device device) {
    for (const int64_t maxima : {0, 1, 5}) {
      at::Tensor sum = numbers(rank, 25, at::kDouble), sum_gpu = sum.to(device);
      comm.all_reduce_small(sum, kOverData, maxima).wait();
      comm.all_reduce_small(sum_gpu, kOverData, maxima).wait();
      EXPECT_TRUE(equal(sum_gpu.cpu(), sum)) << maxima;
    }
  });
}

TEST(Nccl, AllReduceBroadcastAndAllToAll) {
  NEED_GPUS(2);
  const int n = std::min(gpus(), 4);
  on_gpus(n, [&](Comm& comm, int rank, at::Device device) {
    at::Tensor sum = at::full({1000}, rank + 1, at::kFloat).to(device);
    comm.all_reduce(sum, kOverData).wait();
    EXPECT_TRUE(equal(sum.cpu(), at::full({1000}, n * (n + 1) / 2, at::kFloat)));

    at::Tensor mine = numbers(rank, 17, at::kDouble).to(device);
    comm.broadcast(mine, kOverData, n - 1).wait();
    EXPECT_TRUE(equal(mine.cpu(), numbers(n - 1, 17, at::kDouble)));

    at::Tensor out = at::full({n}, rank, at::kLong).to(device), in = at::empty_like(out);
    comm.all_to_all(in, out, kOverData).wait();
    EXPECT_TRUE(equal(in.cpu(), at::arange(n, at::kLong)));
  });
}

TEST(Nccl, AnExchangeRoundARingBothWaysDoesNotDeadlock) {
  NEED_GPUS(2);
  const int n = std::min(gpus(), 4);
  on_gpus(n, [&](Comm& comm, int rank, at::Device device) {
    constexpr int64_t kElements = 16 << 20;  // larger than any buffer of NCCL
    const int next = (rank + 1) % n, previous = (rank + n - 1) % n;
    const at::Tensor up = at::full({kElements}, rank, at::kFloat).to(device);
    at::Tensor from_below = at::empty_like(up);
    const at::Tensor down = at::full({3}, 10 + rank, at::kLong).to(device);
    at::Tensor from_above = at::empty_like(down);
    const std::vector<Transfer> transfers = {
        {up, next, false}, {down, previous, false}, {from_below, previous, true}, {from_above, next, true}};
    comm.exchange(transfers, kOverData).wait();
    EXPECT_TRUE(equal(from_below.cpu(), at::full({kElements}, previous, at::kFloat)));
    EXPECT_TRUE(equal(from_above.cpu(), at::full({3}, 10 + next, at::kLong)));
  });
}

}  // namespace
}  // namespace orthant::nccl_test
