// Rules of use of the operations: matching by tag, groups over several axes, many operations in progress, dropped
// Works, and refused arguments. The results of each collective are checked in every_collective_test.cc.
#include "base/errors.h"
#include "launch/launch.h"
#include "tests/comm/line.h"
#include "tests/support/says.h"

namespace orthant::collectives_test {
namespace {

TEST(Collectives, UseTheTestedTransport) {
  const std::string usual = lacks("ucx") ? "gloo" : "ucx";
  on_line(2, [&](Comm& comm, int) {
    EXPECT_EQ(comm.transport(), process_environment("TESTED_TRANSPORT").value_or(usual));
  });
}

TEST(Collectives, SendAndReceiveRoundARingMatchByTag) {
  constexpr int n = 4;
  on_line(n, [&](Comm& comm, int rank) {
    const at::Tensor first = numbers(rank, 100, at::kBFloat16), second = numbers(rank + 10, 3, at::kLong);
    at::Tensor first_in = at::empty_like(first), second_in = at::empty_like(second);
    const int next = (rank + 1) % n, previous = (rank + n - 1) % n;
    std::vector<Work> works;
    works.push_back(comm.recv(second_in, kOverData, previous, 2));  // not in the order in which they are sent
    works.push_back(comm.recv(first_in, kOverData, previous, 1));
    works.push_back(comm.send(first, kOverData, next, 1));
    works.push_back(comm.send(second, kOverData, next, 2));
    for (auto& work : works) work.wait();
    EXPECT_TRUE(equal(first_in, numbers(previous, 100, at::kBFloat16)));
    EXPECT_TRUE(equal(second_in, numbers(previous + 10, 3, at::kLong)));
    EXPECT_EQ(comm.traffic().at({"data", "send"}), (Traffic{2, {.sent = 200 + 24}}));
    EXPECT_EQ(comm.traffic().at({"data", "recv"}), (Traffic{2, {.received = 200 + 24}}));
  });
}

TEST(Collectives, GroupsOverOneAndSeveralAxes) {
  const Mesh mesh({{"tensor", 2}, {"ring", 2}, {"data", 2}});
  run_ranks(8, [&](Rendezvous rendezvous, int rank) {
    Comm comm(mesh, rank, rendezvous, over("auto"));
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

TEST(Collectives, ManyOperationsInProgress) {
  on_line(3, [&](Comm& comm, int rank) {
    std::vector<at::Tensor> tensors;
    std::vector<Work> works;
    for (int i = 0; i < 20; ++i) {
      tensors.push_back(at::full({50}, rank + i, at::kDouble));
      works.push_back(comm.all_reduce(tensors.back(), kOverData));
    }
    for (auto it = works.rbegin(); it != works.rend(); ++it) it->wait();
    for (int i = 0; i < 20; ++i) EXPECT_EQ(tensors[static_cast<size_t>(i)][7].item<double>(), 3 + 3 * i);
    works.back().wait();  // a second wait() does nothing
    EXPECT_GE(comm.exposed_wait_s(), 0.0);
  });
}

TEST(Collectives, ADroppedWorkIsCompleteWhenItsCommHasEnded) {
  std::vector<at::Tensor> tensors{at::ones({10}), at::ones({10}), at::ones({10})};
  on_line(3, [&](Comm& comm, int rank) {
    { Work forgotten = comm.all_reduce(tensors[static_cast<size_t>(rank)], kOverData); }
    comm.barrier(kOverData).wait();
  });
  for (const at::Tensor& tensor : tensors) EXPECT_EQ(tensor[9].item<float>(), 3);
}

TEST(Collectives, TensorsThatCannotBeSentAreRefused) {
  on_line(2, [&](Comm& comm, int) {
    EXPECT_THROW((void)comm.all_reduce(at::ones({4, 4}).t(), kOverData), LogicError);
    EXPECT_THROW((void)comm.all_reduce(at::Tensor(), kOverData), LogicError);
    at::Tensor two = at::empty({2}), four = at::empty({4});
    EXPECT_THROW((void)comm.all_gather(four, at::ones({2}, at::kDouble), kOverData), LogicError);
    EXPECT_THROW((void)comm.all_gather(four, at::ones({1}), kOverData), LogicError);
    EXPECT_THROW((void)comm.reduce_scatter(two, at::ones({5}), kOverData), LogicError);
    const int64_t counts[] = {1, 2};
    EXPECT_THROW((void)comm.reduce_scatter(two, four, kOverData, counts), LogicError);
    EXPECT_THROW((void)comm.all_reduce(four, {"tensor"}), LogicError);
    EXPECT_THROW((void)comm.send(four, kOverData, comm.rank()), LogicError);
    EXPECT_THROW((void)comm.send(four, kOverData, 1 - comm.rank(), -1), LogicError);
    // The tag that shift() uses.
    EXPECT_THROW((void)comm.send(four, kOverData, 1 - comm.rank(), (1 << 19) - 1), LogicError);
    comm.barrier(kOverData).wait();
  });
}

// A dtype without a sum in libtorch is refused with a clear message before anything is sent. It can still be gathered.
TEST(Collectives, DtypesWithoutASumAreOnlyMoved) {
  on_line(2, [&](Comm& comm, int rank) {
    for (const auto type : {at::kFloat8_e4m3fn, at::kFloat8_e5m2, at::kUInt16, at::kUInt64}) {
      at::Tensor four = at::zeros({4}, at::kFloat).to(type), two = at::zeros({2}, at::kFloat).to(type);
      const std::string refusal = message_of<LogicError>([&] { (void)comm.all_reduce(four, kOverData); });
      EXPECT_TRUE(says(refusal, {"has_sum", c10::toString(type)}));
      EXPECT_THROW((void)comm.reduce(four, kOverData), LogicError);
      EXPECT_THROW((void)comm.reduce_scatter(two, four, kOverData), LogicError);
      EXPECT_FALSE(comm.traffic().contains({"data", "all_reduce"}));
      const at::Tensor mine = at::full({2}, rank + 1, at::kFloat).to(type);
      comm.all_gather(four, mine, kOverData).wait();
      EXPECT_TRUE(equal(four.to(at::kFloat), at::tensor({1.f, 1.f, 2.f, 2.f}))) << c10::toString(type);
    }
  });
}

// Negative control of every comparison with the sum of all ranks: it fails if one rank's contribution is missing.
TEST(Collectives, AMissingContributionIsSeen) {
  on_line(3, [&](Comm& comm, int rank) {
    const at::Tensor sum = numbers(0, 5, at::kDouble) + numbers(1, 5, at::kDouble) + numbers(2, 5, at::kDouble);
    for (const bool complete : {true, false}) {
      at::Tensor mine = numbers(rank, 5, at::kDouble);
      if (rank == 1 && !complete) mine.zero_();
      comm.all_reduce(mine, kOverData).wait();
      EXPECT_EQ(equal(mine, sum), complete);
    }
  });
}

}  // namespace
}  // namespace orthant::collectives_test
