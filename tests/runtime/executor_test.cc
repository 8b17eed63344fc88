// The interpreter of schedule rows: gradients do not depend on the order of the Actions, and an Action starts only when
// its inputs have arrived. Negative controls are illegal rows, which throw LogicError.
#include "runtime/model_stages.h"

#include "base/errors.h"
#include "comm/thread_ranks.h"
#include "schedule/passes.h"
#include "tests/support/tiny_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <thread>

namespace orthant::executor_test {
namespace {


// F and B of each microbatch, then the reduction of the only bucket.
std::vector<Action> step_of(int microbatches) {
  std::vector<Action> row;
  for (int m = 0; m < microbatches; ++m) {
    row.push_back({ActionKind::F, 0, m});
    row.push_back({ActionKind::B, 0, m});
  }
  row.push_back({ActionKind::REDUCE, 0, 0});
  return row;
}

// A tiny model on one rank, ready to run a row.
struct Engine {
  explicit Engine(Comm& comm, const Architecture& a = tiny_architecture())
      : architecture(a), weights(parameter_table(a), at::kDouble), model(a, weights, fused_primitives(), {}),
        reducer(comm, weights.gradients(), {{{0, weights.flat().elements}, every_weight(), kOverData}}, uses()),
        stages({.stages = {{.owner = 0, .layers = {0, a.num_hidden_layers}, .first = true, .last = true}},
                .buckets = {{0}},
                .stream_shape = [](int64_t sequences) { return std::vector<int64_t>{sequences}; }},
               model, weights, &reducer, nullptr, comm) {
    weights.initialize(7);
  }
  std::vector<int> every_weight() const {
    std::vector<int> all;
    for (const Weight& weight : weights.all()) all.push_back(weight.index);
    return all;
  }
  std::vector<int> uses() const {
    std::vector<int> all;
    for (const Weight& weight : weights.all()) all.push_back(model.uses(weight));
    return all;
  }
  Architecture architecture;
  Weights weights;
  Transformer model;
  GradientReducer reducer;
  ModelStages stages;
};

void on_one_rank(const std::function<void(Comm&)>& fn) {
  run_ranks(1, [&](const Rendezvous& rendezvous, int rank) {
    Comm comm(Mesh({{"data", 1}}), rank, rendezvous);
    fn(comm);
  });
}

Microbatch rows_of(const Microbatch& batch, int64_t begin, int64_t count) {
  Microbatch part = batch;
  for (at::Tensor Microbatch::*field :
       {&Microbatch::tokens_BT, &Microbatch::labels_BT, &Microbatch::positions_BT, &Microbatch::samples_B}) {
    part.*field = (batch.*field).narrow(0, begin, count).contiguous();
  }
  return part;
}

TEST(Executor, AnyOrderOfForwardAndBackwardGivesTheSameGradients) {
  on_one_rank([](Comm& comm) {
    for (const bool tied : {false, true}) {
      Engine engine(comm, tiny_architecture({.tied = tied}));
      const Microbatch batch = random_batch(engine.architecture, 3, 10, 2);
      auto run = [&](std::vector<Action> row) {
        double loss = 0;
        engine.stages.run(row, {.sequences = {1, 1, 1},
                                .load = [&](int m) { return rows_of(batch, m, 1); },
                                .announce = {},
                                .loss = [&](const at::Tensor& sum) { loss = sum.item<double>(); }});
        return std::pair{loss, engine.weights.gradients().clone()};
      };
      using enum ActionKind;
      const auto [loss, gradients] = run(step_of(3));
      const auto [loss_2, gradients_2] =
          run({{F, 0, 0}, {F, 0, 1}, {F, 0, 2}, {B, 0, 0}, {B, 0, 1}, {B, 0, 2}, {REDUCE, 0, 0}});
      EXPECT_EQ(loss, loss_2);
      EXPECT_GT(gradients.abs().max().item<double>(), 0);
      // Each weight accumulates the gradients of the microbatches in their order, whatever runs between them. Only a
      // tied embedding accumulates one gradient in F (as the head) and one in B, in the order of the schedule.
      if (tied) {
        EXPECT_LT(((gradients - gradients_2).norm() / gradients.norm()).item<double>(), 1e-14);
      } else {
        EXPECT_TRUE(gradients.equal(gradients_2));
      }
    }
  });
}

// Backward is split, with each W at any place after its I. Gradients accumulate in the order of the W. If that is the
// order of the microbatches, no bit differs from an unsplit backward. Otherwise only the order of three summands does.
TEST(Executor, ABackwardInHalvesGivesTheSameGradients) {
  on_one_rank([](Comm& comm) {
    Engine engine(comm);
    const Microbatch batch = random_batch(engine.architecture, 3, 10, 2);
    auto run = [&](const std::vector<int>& inputs, const std::vector<int>& weights) {
      using enum ActionKind;
      std::vector<Action> row = {{F, 0, 0}, {F, 0, 1}, {F, 0, 2}};
      for (const int m : inputs) row.push_back({weights.empty() ? B : I, 0, m});
      for (const int m : weights) row.push_back({W, 0, m});
      row.push_back({REDUCE, 0, 0});
      engine.stages.run(row, {.sequences = {1, 1, 1},
                              .load = [&](int m) { return rows_of(batch, m, 1); },
                              .announce = {},
                              .loss = {}});
      return engine.weights.gradients().clone();
    };
    const at::Tensor whole = run({0, 1, 2}, {});
    EXPECT_TRUE(run({0, 1, 2}, {0, 1, 2}).equal(whole));
    for (const auto& [inputs, weights] : {std::pair{std::vector{2, 1, 0}, std::vector{0, 1, 2}},
                                          {std::vector{0, 1, 2}, std::vector{2, 0, 1}},
                                          {std::vector{1, 0, 2}, std::vector{1, 2, 0}}}) {
      EXPECT_LT(((run(inputs, weights) - whole).norm() / whole.norm()).item<double>(), 1e-14);
    }
    // Control: a second W of the same microbatch would add its gradient twice.
    EXPECT_THROW(run({0, 1, 2}, {0, 1, 1}), LogicError);
  });
}

TEST(Executor, AnnouncesEveryActionBeforeItIsDone) {
  on_one_rank([](Comm& comm) {
    Engine engine(comm);
    const Microbatch batch = random_batch(engine.architecture, 2, 10, 2);
    const auto row = step_of(2);
    std::vector<std::string> announced;
    engine.stages.run(row, {.sequences = {1, 1},
                            .load = [&](int m) { return rows_of(batch, m, 1); },
                            .announce =
                                [&](const Action& action, size_t index) {
                                  EXPECT_EQ(index, announced.size());
                                  announced.push_back(to_string(action));
                                },
                            .loss = {}});
    EXPECT_EQ(announced, (std::vector<std::string>{"0F0", "0B0", "0F1", "0B1", "0REDUCE_GRAD0"}));
  });
}

TEST(Executor, AnEmptyMicrobatchAddsNothingAndARankWithoutAnyHasZeroGradients) {
  on_one_rank([](Comm& comm) {
    Engine engine(comm);
    const Microbatch batch = random_batch(engine.architecture, 2, 10, 2);
    auto gradients = [&](int64_t live) {
      engine.stages.run(step_of(3), {.sequences = {live > 0 ? 1 : 0, live > 1 ? 1 : 0, 0},
                                     .load = [&](int m) { return rows_of(batch, m, 1); },
                                     .announce = {},
                                     .loss = {}});
      return engine.weights.gradients().clone();
    };
    const at::Tensor both = gradients(2);
    EXPECT_GT(both.abs().max().item<double>(), 0);
    EXPECT_EQ(gradients(0).abs().max().item<double>(), 0.0);
    EXPECT_TRUE(gradients(2).equal(both));  // the empty step left nothing behind
  });
}

TEST(Executor, RefusesAnActionItCannotDoAndAForwardWithoutBackward) {
  on_one_rank([](Comm& comm) {
    Engine engine(comm);
    const Microbatch batch = random_batch(engine.architecture, 1, 10, 2);
    const StepInput input{.sequences = {1}, .load = [&](int) { return batch; }, .announce = {}, .loss = {}};
    using enum ActionKind;
    EXPECT_THROW(engine.stages.run(std::vector<Action>{{UNSHARD, 0, -1}}, input), LogicError);
    EXPECT_THROW(engine.stages.run(std::vector<Action>{{F, 0, 0}}, input), LogicError);
    Engine other(comm);
    EXPECT_THROW(other.stages.run(std::vector<Action>{{F, 0, 0}, {B, 0, 0}, {W, 0, 0}}, input), LogicError);
  });
}

// Two ranks exchange tensors of one element; the stages record their inputs, sleep and return constants. Periods are
// read from the machine's clock.
TEST(Executor, AnActionBeginsWhenWhatItReadsIsThere) {
  constexpr auto kNap = std::chrono::milliseconds(40);
  std::vector<std::vector<Interval>> intervals(2);
  std::vector<double> read;  // inputs of the last stage
  const Schedule schedule = add_messages({.rows = {{{ActionKind::F, 0, 0}, {ActionKind::B, 0, 0}},
                                                   {{ActionKind::F, 1, 0}, {ActionKind::B, 1, 0}}},
                                          .stage_owner = {0, 1}});
  run_ranks(2, [&](const Rendezvous& rendezvous, int rank) {
    Comm comm(Mesh({{"pipeline", 2}}), rank, rendezvous);
    const StageWork work = {.forward =
                                [&](const Action&, const at::Tensor& x) {
                                  EXPECT_EQ(x.defined(), rank == 1);
                                  if (rank == 1) read.push_back(x.item<double>());
                                  std::this_thread::sleep_for(kNap);
                                  return rank == 0 ? at::full({1}, 7.0, at::kDouble) : at::Tensor();
                                },
                            .backward =
                                [&](const Action&, const at::Tensor& dy) {
                                  EXPECT_EQ(dy.defined(), rank == 0);
                                  std::this_thread::sleep_for(kNap);
                                  return rank == 1 ? at::full({1}, 8.0, at::kDouble) : at::Tensor();
                                }};
    Executor executor({.owners = schedule.stage_owner,
                       .stream_shape = [](int) { return std::vector<int64_t>{1}; },
                       .stream = at::kDouble},
                      work, comm);
    const auto& row = schedule.rows[static_cast<size_t>(rank)];
    executor.run(row, {});
    executor.run(row, {});  // only the last run's intervals are kept
    intervals[static_cast<size_t>(rank)] = executor.intervals();
  });
  EXPECT_EQ(read, (std::vector<double>{7, 7}));
  const auto interval = [&](int rank, const Action& action) {
    const auto& row = schedule.rows[static_cast<size_t>(rank)];
    const auto at = static_cast<size_t>(std::find(row.begin(), row.end(), action) - row.begin());
    EXPECT_EQ(intervals[static_cast<size_t>(rank)].size(), row.size());
    return intervals[static_cast<size_t>(rank)].at(at);
  };
  using enum ActionKind;
  const std::vector<Interval> path = {interval(0, {F, 0, 0}), interval(1, {F, 1, 0}), interval(1, {B, 1, 0}),
                                      interval(0, {B, 0, 0})};
  for (size_t i = 0; i < path.size(); ++i) {
    EXPECT_GE(path[i].end - path[i].start, kNap) << i;
    if (i > 0) {
      EXPECT_GE(path[i].start, path[i - 1].end) << i;
    }
  }
}

// The next forward's input is received while the present one computes. Its receive is posted no earlier.
TEST(Executor, AReceiveIsPostedBeforeTheComputationInFrontOfIt) {
  using enum ActionKind;
  const std::vector<std::vector<Action>> rows = {
      {{F, 0, 0}, {SEND_F, 0, 0}, {F, 0, 1}, {SEND_F, 0, 1}, {F, 0, 2}, {SEND_F, 0, 2}},
      {{RECV_F, 1, 0}, {F, 1, 0}, {RECV_F, 1, 1}, {F, 1, 1}, {RECV_F, 1, 2}, {F, 1, 2}}};
  std::vector<int64_t> posted;
  run_ranks(2, [&](const Rendezvous& rendezvous, int rank) {
    Comm comm(Mesh({{"pipeline", 2}}), rank, rendezvous);
    const StageWork work = {.forward =
                                [&](const Action& action, const at::Tensor& x) {
                                  if (rank == 0) return at::full({1}, action.microbatch, at::kDouble);
                                  EXPECT_EQ(x.item<double>(), action.microbatch);
                                  posted.push_back(comm.total_traffic().calls);
                                  return at::Tensor();
                                },
                            .backward = {}};
    Executor({.owners = {0, 1}, .stream_shape = [](int) { return std::vector<int64_t>{1}; }, .stream = at::kDouble},
             work, comm)
        .run(rows[static_cast<size_t>(rank)], {});
  });
  EXPECT_EQ(posted, (std::vector<int64_t>{2, 3, 3}));
}

}  // namespace
}  // namespace orthant::executor_test
