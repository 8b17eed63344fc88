// Panels of the residual stream: their number and sizes, the bytes they send, and the order in which they move and are
// multiplied.
#include "parallel/tensor/stationary.h"
#include "parallel/tensor/panels.h"

#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <mutex>

#include "mesh/collective.h"
#include "mesh/redistribute.h"
#include "model/weights.h"
#include "parallel/tensor/layers.h"
#include "tests/parallel/tensor/matrices.h"

namespace orthant::panels_test {
namespace {

std::vector<int64_t> sizes_of(const StreamPanels& stream) {
  std::vector<int64_t> sizes;
  for (const Range& panel : stream.panels) sizes.push_back(panel.size());
  return sizes;
}
using Sizes = std::vector<int64_t>;

TEST(StreamPanels, AreAtMostEightAndNotTooSmall) {
  const TensorPlan width{.columns = 2, .panel_bytes = 1000};
  EXPECT_EQ(sizes_of(stream_panels(width, 2, 5, 25, false, 4)), Sizes({10})) << "1000 bytes";
  EXPECT_EQ(sizes_of(stream_panels(width, 2, 10, 25, false, 4)), Sizes({10, 10}));
  EXPECT_EQ(sizes_of(stream_panels(width, 1, 35, 25, false, 4)), Sizes({12, 12, 11}));
  EXPECT_EQ(sizes_of(stream_panels(width, 1, 4000, 25, false, 4)), Sizes(8, 500));
  EXPECT_EQ(sizes_of(stream_panels(width, 1, 3, 25000, false, 4)), Sizes({1, 1, 1})) << "of a token at least";
  EXPECT_EQ(sizes_of(stream_panels(width, 0, 64, 25, false, 4)), Sizes({0})) << "nothing is a panel, too";
}

TEST(StreamPanels, SplitTheTokensOfEveryColumnEqually) {
  const StreamPanels tokens =
      stream_panels({.columns = 4, .stream = StreamSharding::tokens, .panel_bytes = 1}, 3, 24, 8, false, 4);
  EXPECT_EQ(tokens.sequences, 3);
  EXPECT_EQ(tokens.shares, 4);
  EXPECT_EQ(sizes_of(tokens), Sizes(6, 1));
}

TEST(StreamPanels, AreOneWhereNothingMoves) {
  EXPECT_EQ(stream_panels({.rows = 4, .panel_bytes = 1}, 1, 64, 64, true, 4).panels.size(), 1U);
  const TensorPlan unsharded{.columns = 2, .stream = StreamSharding::none, .panel_bytes = 1};
  EXPECT_EQ(stream_panels(unsharded, 1, 64, 64, false, 4).panels.size(), 1U);
  EXPECT_EQ(stream_panels(unsharded, 1, 64, 64, true, 4).panels.size(), 8U) << "but a sum";
}

// The panels together send the bytes of one message of all tokens, on every rank and for any number of panels.
TEST(StreamPanels, SendTheBytesOfTheWhole) {
  for (const auto stream : {StreamSharding::width, StreamSharding::tokens, StreamSharding::none}) {
    for (const int columns : {2, 3, 4}) {
      const Mesh mesh = tensor_mesh(1, columns, 1);
      const auto bytes = [&](int64_t panel_bytes, int rank, auto move_of) {
        const TensorPlan plan{.columns = columns, .stream = stream, .panel_bytes = panel_bytes};
        const StreamPanels all = stream_panels(plan, 3, 60, 24, true, 4);
        int64_t sum = 0;
        for (const Range& panel : all.panels) {
          const AxisRedistribution m =
              move_of(plan, std::vector<int64_t>{all.sequences, all.shares * panel.size(), 24});
          Layout before = m.from;
          for (const Collective& step : redistribute(mesh, m.from, m.to, m.shape, 4)) {
            sum += bytes_sent(mesh, step, before, m.shape, 4, rank);
            before = step.after;
          }
        }
        return sum;
      };
      for (int rank = 0; rank < columns; ++rank) {
        for (const int64_t some : {1, 2000, 6000}) {
          EXPECT_EQ(bytes(some, rank, gather_stream), bytes(1 << 30, rank, gather_stream)) << columns;
          EXPECT_EQ(bytes(some, rank, sum_stream), bytes(1 << 30, rank, sum_stream)) << columns;
        }
      }
    }
  }
}

// for_panels() starts the next panel's move before it multiplies the present panel, and starts no later move.
TEST(ForPanels, BeginTheNextBeforeTheProduct) {
  std::string order;
  struct Move {
    int panel;
    std::string* order;
    int wait() {
      *order += fmt::format("arrived{} ", panel);
      return panel;
    }
  };
  for_panels(
      std::vector<int>{0, 1, 2},
      [&](int panel) {
        order += fmt::format("begin{} ", panel);
        return Move{panel, &order};
      },
      [&](int panel, auto arrive) {
        EXPECT_EQ(arrive(), panel);
        order += fmt::format("multiply{} ", panel);
      });
  EXPECT_EQ(order, "begin0 arrived0 begin1 multiply0 arrived1 begin2 multiply1 arrived2 multiply2 ");
}

// PendingSum finishes a sum before it starts the next one.
TEST(PendingSum, HasOneSumOnItsWay) {
  std::string order;
  struct Move {
    std::string* order;
    at::Tensor wait() {
      *order += "arrived ";
      return {};
    }
  };
  PendingSum<Move> sums;
  for (int i = 0; i < 2; ++i) {
    sums.next([&] { order += fmt::format("begin{} ", i); return Move{&order}; },
              [&order, i](const at::Tensor&) { order += fmt::format("put{} ", i); });
  }
  sums.finish();
  EXPECT_EQ(order, "begin0 arrived put0 begin1 arrived put1 ");
}

// Number of operations that this rank's Comm had started at each of its matrix products, counted by an observer of
// libtorch's dispatch.
thread_local const Comm* t_comm = nullptr;
thread_local std::vector<int64_t> t_begun;
std::unique_ptr<at::ObserverContext> at_product(const at::RecordFunction& call) {
  const std::string name = call.name();
  if (t_comm != nullptr && (name == "aten::mm" || name == "aten::addmm")) {
    t_begun.push_back(t_comm->total_traffic().calls);
  }
  return nullptr;
}

struct Begun {
  std::vector<int64_t> forward, backward;
  bool operator==(const Begun&) const = default;
};
Begun begun_at_products(TensorPlan plan, Stationary stationary, int panels) {
  constexpr int64_t kSequences = 2, kTokens = 16, kIn = 6, kOut = 10;
  const int64_t moves = stationary == Stationary::output ? kIn : kOut;
  plan.panel_bytes = kSequences * kTokens * moves * static_cast<int64_t>(sizeof(double)) / panels;
  Begun begun;
  std::mutex mutex;
  on_mesh(tensor_mesh(1, plan.columns, 1), [&](Comm& comm) {
    const TensorMesh mesh(comm, plan);
    const bool output = stationary == Stationary::output;
    Weights weights({{.name = "w", .shape = {output ? kOut / 2 : kOut, output ? kIn : kIn / 2}}}, at::kDouble);
    weights.initialize(1);
    const bool cut_tokens = plan.stream == StreamSharding::tokens, cut_width = plan.stream == StreamSharding::width;
    const int64_t tokens = output && cut_tokens ? kTokens / 2 : kTokens, width = !output || cut_width ? kIn / 2 : kIn;
    const at::Tensor x = at::ones({kSequences, tokens, width}, at::kDouble).requires_grad_();
    const auto listener =
        at::addThreadLocalCallback(at::RecordFunctionCallback(at_product).scopes({at::RecordScope::FUNCTION}));
    t_comm = &comm, t_begun.clear();
    const at::Tensor y = tensor_linear(mesh, x, weights["w"], {kOut, kIn, stationary});
    const auto forward = std::exchange(t_begun, {});
    torch::autograd::backward({y}, {at::ones_like(y)});
    t_comm = nullptr;
    at::removeCallback(listener);
    const std::lock_guard lock(mutex);
    begun = {forward, t_begun};
  });
  return begun;
}

TEST(TensorLinear, BeginsTheNextPanelBeforeThePresentProduct) {
  for (const auto stream : {StreamSharding::width, StreamSharding::tokens}) {
    const TensorPlan plan{.columns = 2, .stream = stream};
    // In forward, 2, 3, 4 and 4 gathers have started at the four products. Backward alternates between the product for
    // the input's gradient and that for the weight's. Each panel starts a sum and the next gather in between.
    EXPECT_EQ(begun_at_products(plan, Stationary::output, 4),
              (Begun{{2, 3, 4, 4}, {5, 7, 7, 9, 9, 11, 11, 12}}));
    EXPECT_EQ(begun_at_products(plan, Stationary::output, 1), (Begun{{1}, {2, 3}}));
    // In forward, 0, 1, 2 and 3 sums have started. In backward, one gather more has started than the two products of a
    // panel need.
    EXPECT_EQ(begun_at_products(plan, Stationary::input, 4),
              (Begun{{0, 1, 2, 3}, {6, 6, 7, 7, 8, 8, 8, 8}}));
    EXPECT_EQ(begun_at_products(plan, Stationary::input, 1), (Begun{{0}, {2, 2}}));
  }
}

// flat() accepts a column without rows, which occurs if the vocabulary has fewer rows than there are columns.
TEST(Flat, OfAColumnWithoutAny) {
  EXPECT_EQ(flat(at::empty({2, 3, 0})).sizes(), (std::vector<int64_t>{6, 0}));
  EXPECT_EQ(flat(at::empty({2, 3, 4})).sizes(), (std::vector<int64_t>{6, 4}));
}

}  // namespace
}  // namespace orthant::panels_test
