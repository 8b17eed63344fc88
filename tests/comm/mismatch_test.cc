// Ranks that run different programs: a message with another size, dtype or operation than expected is a CommError. It
// names both sides, the Action and the tensor. No rank gets a wrong result without an error, no rank hangs, and no
// process aborts.
#include <thread>

#include "base/errors.h"
#include "tests/comm/line.h"
#include "tests/support/says.h"

namespace orthant::mismatch_test {
namespace {

using Call = std::function<Work(Comm&)>;

// The error of each rank, when rank 0 calls `first` and the others call `second`; "" for a rank without an error.
std::vector<std::string> messages_of(const std::string& transport, int n, const Call& first, const Call& second) {
  std::vector<std::string> messages(static_cast<size_t>(n));
  EXPECT_THROW(run_ranks(n,
                         [&](Rendezvous rendezvous, int rank) {
                           CommOptions options = over(transport);
                           // The timeout is long, so only a detected mismatch can end this test soon.
                           options.timeout_s = 500;
                           Comm comm(line(n), rank, rendezvous, options);
                           comm.set_activity("0B3, action 7 of 12 of step 41");
                           try {
                             (rank == 0 ? first : second)(comm).wait();
                             comm.barrier(kOverData).wait();  // a failure elsewhere interrupts this one
                           } catch (const CommError& error) {
                             messages[static_cast<size_t>(rank)] = error.what();
                             throw;
                           }
                         }),
               CommError);
  return messages;
}

// Every rank ends with an error, and at least one of them, the cause, contains all `parts`.
void expect_said(const std::string& transport, int n, const Call& first, const Call& second,
                 const std::vector<std::string>& parts) {
  const auto messages = messages_of(transport, n, first, second);
  bool understood = false;
  std::string all;
  for (const std::string& message : messages) {
    EXPECT_NE(message, "") << transport << ", " << n << " ranks: a rank noticed nothing";
    understood = understood || says(message, parts);
    all += message + "\n";
  }
  EXPECT_TRUE(understood) << transport << ", " << n << " ranks:\n" << all;
}

class Mismatch : public testing::TestWithParam<std::tuple<const char*, int>> {
 protected:
  void SetUp() override {
    if (lacks(transport())) GTEST_SKIP() << ucx_problem();
  }
  std::string transport() const { return std::get<0>(GetParam()); }
  int ranks() const { return std::get<1>(GetParam()); }

  void TearDown() override {
    for (auto& thread : under_way_) thread.join();
  }

  // Checks run in parallel, because a rank that fails waits a second for the reports of other ranks.
  void start(std::function<void()> check) { under_way_.emplace_back(std::move(check)); }
  // Checks both assignments of the two programs to rank 0 and the others.
  void expect(const Call& a, const Call& b, const std::vector<std::string>& parts) {
    start([=, this] { expect_said(transport(), ranks(), a, b, parts); });
    start([=, this] { expect_said(transport(), ranks(), b, a, parts); });
  }

 private:
  std::vector<std::thread> under_way_;
};
INSTANTIATE_TEST_SUITE_P(Over, Mismatch, testing::Combine(testing::Values("ucx", "gloo"), testing::Values(2, 3)),
                         [](const auto& one) {
                           return fmt::format("{}_{}_ranks", std::get<0>(one.param), std::get<1>(one.param));
                         });

constexpr const char* kDuring = "failed during 0B3, action 7 of 12 of step 41: ";
constexpr const char* kWhy = "the ranks do not run the same program";

Call all_reduce(int64_t size, at::ScalarType type = at::kFloat) {
  return [=](Comm& comm) { return comm.all_reduce(at::ones({size}, type), kOverData); };
}

TEST_P(Mismatch, SizesDiffer) {
  for (const auto& [small, large] : {std::pair{10, 11}, {100, 60000}, {50000, 60000}, {400000, 3000000},
                                     // Two ranks exchange full tensors of 16 KiB, and halves of 32 KiB:
                                     // the same number of bytes.
                                     {4096, 8192}}) {
    expect(all_reduce(small), all_reduce(large),
           {"all_reduce over data (", kDuring, " where this rank expected ", kWhy});
  }
  if (ranks() == 2) {
    expect(all_reduce(256), all_reduce(512),
           {"2.0 KiB of Float for an all_reduce", "1.0 KiB of Float for an all_reduce"});
  }
}

TEST_P(Mismatch, DtypesDiffer) {
  expect(all_reduce(600), all_reduce(300, at::kDouble),
         {" of Double for an all_reduce", " of Float for an all_reduce", kDuring, kWhy});
  expect(all_reduce(300000), all_reduce(300000, at::kInt),
         {" of Int for an all_reduce", " of Float for an all_reduce"});
}

TEST_P(Mismatch, OperationsDiffer) {
  for (const int64_t size : {6, 60000, 600000}) {
    const Call gather = [=](Comm& comm) {
      const int n = comm.group_size(kOverData);
      return comm.all_gather(at::empty({size}), at::ones({size / n}), kOverData);
    };
    expect(all_reduce(size), gather, {" for an all_reduce", " for an all_gather", kDuring, kWhy});
    // Rank 0 broadcasts while the others run an all-reduce. Rank 0 need not see the mismatch, but rank 1 must.
    const Call broadcast = [=](Comm& comm) { return comm.broadcast(at::ones({size}), kOverData, 0); };
    start([=, this] {
      const auto message = messages_of(transport(), ranks(), broadcast, all_reduce(size))[1];
      EXPECT_TRUE(says(message, {"rank 0 sent ", " for a broadcast", " for an all_reduce", kDuring}));
    });
  }
}

std::vector<std::string> segments(const std::string& kind) {
  return {kind + " over data (", kDuring, " for a " + kind, " where this rank expected ", kWhy};
}

// The receiver detects messages that are too long or too short. This holds for messages in segments, of which the last
// may be missing.
TEST_P(Mismatch, SegmentedMessagesDiffer) {
  constexpr int64_t kSegment = (512 << 10) / 4;
  for (const auto& [small, large] : {std::pair{kSegment, kSegment + 1}, {2 * kSegment, 2 * kSegment + 1},
                                     {2 * kSegment, 4 * kSegment}, {kSegment + 5, 3 * kSegment}}) {
    const auto broadcast = [](int64_t size) -> Call {
      return [=](Comm& comm) { return comm.broadcast(at::ones({size}), kOverData, 0); };
    };
    expect(broadcast(small), broadcast(large), segments("broadcast"));
    const auto reduce = [](int64_t size) -> Call {
      return [=](Comm& comm) { return comm.reduce(at::ones({size}), kOverData, 0); };
    };
    expect(reduce(small), reduce(large), segments("reduce"));
    const auto in_chunks = [](int64_t size) -> Call {
      return
          [=](Comm& comm) { return comm.reduce_in_chunks(at::ones({size * comm.group_size(kOverData)}), kOverData); };
    };
    expect(in_chunks(small), in_chunks(large), segments("reduce_in_chunks"));
    const auto scatter = [](int64_t size) -> Call {
      return [=](Comm& comm) {
        const int n = comm.group_size(kOverData);
        return comm.reduce_scatter(at::empty({size}), at::ones({size * n}), kOverData);
      };
    };
    expect(scatter(small), scatter(large), segments("reduce_scatter"));
  }
}

// A rank with an empty tensor still sends an empty message. Otherwise the messages of the others would wait forever.
TEST_P(Mismatch, EmptyAgainstNonEmpty) {
  const auto with_some = [&](const std::string& kind, const std::function<Call(int64_t)>& call) {
    for (const int64_t size : {6, 600000}) {
      expect(call(0), call(size), {kind, kDuring, " where this rank expected ", kWhy});
    }
  };
  with_some(" for an all_reduce", [](int64_t size) { return all_reduce(size); });
  with_some(" for a broadcast", [](int64_t size) -> Call {
    return [=](Comm& comm) { return comm.broadcast(at::ones({size}), kOverData, 0); };
  });
  for (const bool last : {false, true}) {
    with_some(" for a reduce", [=](int64_t size) -> Call {
      return [=](Comm& comm) {
        return comm.reduce(at::ones({size}), kOverData, last ? comm.group_size(kOverData) - 1 : 0);
      };
    });
  }
  with_some(" for an all_gather", [](int64_t size) -> Call {
    return [=](Comm& comm) {
      return comm.all_gather(at::empty({size * comm.group_size(kOverData)}), at::ones({size}), kOverData);
    };
  });
  with_some(" for an all_to_all", [](int64_t size) -> Call {
    return [=](Comm& comm) {
      const int n = comm.group_size(kOverData);
      return comm.all_to_all(at::empty({size * n}), at::ones({size * n}), kOverData);
    };
  });
  const auto send = [](int64_t size) -> Call {
    return [=](Comm& comm) { return comm.shift(at::empty({size}), at::ones({size}), kOverData); };
  };
  with_some(" for a send or exchange", send);
}

// Ranks whose counts give other ranks empty chunks also send empty messages.
TEST_P(Mismatch, ChunkCountsDiffer) {
  expect(all_reduce(1), all_reduce(3), {" for an all_reduce", kDuring, " where this rank expected ", kWhy});
  const auto cut = [&](std::vector<int64_t> counts) {
    counts.resize(static_cast<size_t>(ranks()));
    return counts;
  };
  const auto total = [](const std::vector<int64_t>& counts) { return before(counts, static_cast<int>(counts.size())); };
  const auto own = [](const std::vector<int64_t>& counts, Comm& comm) {
    return counts[static_cast<size_t>(comm.position(kOverData))];
  };
  const auto scatter = [=](std::vector<int64_t> counts) -> Call {
    return [=](Comm& comm) {
      return comm.reduce_scatter(at::empty({own(counts, comm)}), at::ones({total(counts)}), kOverData, counts);
    };
  };
  expect(scatter(cut({2, 0, 0})), scatter(cut({2, 2, 2})), segments("reduce_scatter"));
  const auto gather = [=](std::vector<int64_t> counts) -> Call {
    return [=](Comm& comm) {
      return comm.all_gather(at::empty({total(counts)}), at::ones({own(counts, comm)}), kOverData, counts);
    };
  };
  auto longer = cut({10, 10, 10});
  longer.back() = 20;
  expect(gather(cut({10, 10, 10})), gather(longer),
         {" for an all_gather", kDuring, " where this rank expected ", kWhy});
}

// A message that arrives before its receive is posted is compared too: a transport may complete the receive while it is
// being posted.
TEST_P(Mismatch, MessageArrivesBeforeReceive) {
  const auto expect_told = [&](const Call& sends, const Call& receives, const char* sent, const char* expected) {
    const Call first = [=](Comm& comm) {
      Work work = sends(comm);
      comm.send(at::ones({1}), kOverData, 1, 9).wait();
      return work;
    };
    const Call second = [=](Comm& comm) {
      if (comm.rank() != 1) return Work();
      comm.recv(at::empty({1}), kOverData, 0, 9).wait();
      return receives(comm);
    };
    start([=, this] {
      EXPECT_TRUE(says(messages_of(transport(), ranks(), first, second)[1],
                       {fmt::format("rank 0 sent {} where this rank expected {}", sent, expected), kWhy}));
    });
  };
  const auto send = [](int64_t size) -> Call {
    return [=](Comm& comm) { return comm.send(at::ones({size}), kOverData, 1); };
  };
  const auto recv = [](int64_t size, at::ScalarType type) -> Call {
    return [=](Comm& comm) { return comm.recv(at::empty({size}, type), kOverData, 0); };
  };
  expect_told(send(3), recv(4, at::kFloat), "12 B of Float for a send or exchange", "16 B of Float");
  expect_told(send(4), recv(3, at::kFloat), "16 B of Float for a send or exchange", "12 B of Float");
  expect_told(send(3), recv(3, at::kInt), "12 B of Float for a send or exchange", "12 B of Int");
  expect_told([](Comm& comm) { return comm.reduce(at::ones({3}), kOverData, 1); },
              [](Comm& comm) { return comm.broadcast(at::ones({3}), kOverData, 0); }, "12 B of Float for a reduce",
              "12 B of Float for a broadcast");
}

TEST_P(Mismatch, SendAndReceiveDiffer) {
  for (const auto& [sent, expected] : {std::pair{10, 11}, {11, 10}, {100, 500000}, {500000, 100}, {400000, 500000}}) {
    const int64_t out = sent, in = expected;
    const Call first = [=](Comm& comm) { return comm.send(at::ones({out}), kOverData, 1, 4); };
    const Call second = [=](Comm& comm) {
      return comm.rank() == 1 ? comm.recv(at::empty({in}), kOverData, 0, 4) : comm.barrier(kOverData);
    };
    start([=, this] {
      EXPECT_TRUE(says(messages_of(transport(), ranks(), first, second)[1],
                       {"rank 1: recv from rank 0 over data (", kDuring, "rank 0 sent ",
                        " of Float for a send or exchange where this rank expected ", kWhy}));
    });
  }
  const Call first = [](Comm& comm) { return comm.send(at::ones({3}), kOverData, 1); };
  const Call second = [](Comm& comm) {
    return comm.rank() == 1 ? comm.recv(at::empty({3}, at::kInt), kOverData, 0) : comm.barrier(kOverData);
  };
  EXPECT_TRUE(says(messages_of(transport(), ranks(), first, second)[1],
                   {"rank 0 sent 12 B of Float for a send or exchange where this rank expected 12 B of Int"}));
}

}  // namespace
}  // namespace orthant::mismatch_test
