// Tests of a Comm for GPUs that need no GPU: copies through host memory, and the check that no two ranks use one GPU.
#include <mutex>

#include "base/errors.h"
#include "tests/comm/line.h"
#include "tests/support/says.h"

namespace orthant::gpus_test {
namespace {

// A result is in the tensor only after wait(), and an input may change once its operation has started.
TEST(StagedTensors, AreCopiedBothWays) {
  on_line(
      2,
      [](Comm& comm, int rank) {
        at::Tensor in = at::full({4}, rank + 1.0), out = at::full({4}, -1.0), sum = at::full({100'000}, rank + 1.0);
        Work exchanged = comm.shift(out, in, kOverData), summed = comm.all_reduce(sum, kOverData);
        in.fill_(7), sum.fill_(7);
        comm.barrier(kOverData).wait();
        EXPECT_TRUE(out.eq(-1).all().item<bool>());
        exchanged.wait(), summed.wait();
        EXPECT_TRUE(out.eq(2.0 - rank).all().item<bool>());
        EXPECT_TRUE(sum.eq(3).all().item<bool>());
        at::Tensor received = at::zeros({3});
        Work receive = comm.recv(received, kOverData, 1 - rank),
             send = comm.send(in.narrow(0, 0, 3), kOverData, 1 - rank);
        receive.wait(), send.wait();
        EXPECT_TRUE(received.eq(7).all().item<bool>());
      },
      "staged");
}

// Connects ranks that have these GPUs. Returns their error, and the warning of rank 0.
struct Reports {
  std::string error, warning;
};
Reports connect(const std::vector<Gpu>& gpus) {
  Reports found;
  std::mutex mutex;
  try {
    run_ranks(static_cast<int>(gpus.size()), [&](Rendezvous rendezvous, int rank) {
      CommOptions options = over("auto");
      options.gpu = gpus[static_cast<size_t>(rank)];
      options.on_warning = [&](const std::string& warning) {
        const std::lock_guard lock(mutex);
        found.warning = warning;
      };
      Comm comm(line(static_cast<int>(gpus.size())), rank, rendezvous, options);
      comm.barrier(kOverData).wait();
    });
  } catch (const ConfigError& error) {
    found.error = error.what();
  }
  return found;
}

TEST(Gpus, OfRanksMustDiffer) {
  const Reports same = connect({{"a", "H200"}, {"b", "H200"}, {"a", "H200"}});
  EXPECT_TRUE(says(same.error, {"ranks 0 and 2 use the same GPU (H200, a)", "run.transport = \"gloo\""}));
  const Reports good = connect({{"a", "H200"}, {"b", "H200"}, {"c", "H200"}});
  EXPECT_EQ(good.error + good.warning, "");
  EXPECT_EQ(connect({{}, {}}).error, "");
}

TEST(Gpus, OfDifferentModelsAreWarnedOf) {
  const Reports found = connect({{"a", "H200"}, {"b", "H200"}, {"c", "A100"}});
  EXPECT_EQ(found.error, "");
  EXPECT_TRUE(says(found.warning, {"rank 0 has H200, rank 2 has A100"}));
}

// Messages between CPUs need no preparation.
TEST(Gpus, PreparedMessagesOfCpusAreNothing) {
  on_line(2, [](Comm& comm, int rank) {
    comm.prepare_messages(kOverData, at::kCPU, {{0, 1}, {1, 0}});
    at::Tensor tensor = at::full({2}, rank);
    (rank == 0 ? comm.send(tensor, kOverData, 1) : comm.recv(tensor, kOverData, 0)).wait();
    EXPECT_EQ(tensor[1].item<float>(), 0);
  });
}

}  // namespace
}  // namespace orthant::gpus_test
