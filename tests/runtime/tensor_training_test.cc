// Long runs on tensor meshes with AdamW and with plain gradient descent equal one rank's. A resumed run equals the
// uninterrupted one in every bit, replicas of a weight are bit-equal, and delays of ranks change no bit.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <map>
#include <mutex>
#include <thread>

#include "base/hash.h"
#include "tests/support/random.h"
#include "tests/support/sweep.h"
#include "tests/support/tensor_cuts.h"

namespace orthant::tensor_training_test {
namespace {

constexpr int64_t kSteps = 20;

std::vector<std::string> long_run(std::vector<std::string> more = {}) {
  more.insert(more.end(), {"training.global_batch_size=8", "training.steps=20", "model.dropout=0.1",
                           "training.max_norm=1.0", "optimizer.weight_decay=0.1"});
  return more;
}

std::vector<TensorCut> meshes() {
  return {grid(2, 2, 1), grid(2, 2, 2), grid(1, 4, 1),           grid(4, 1, 1),
          grid(1, 2, 4), grid(1, 1, 8), grid(2, 2, 2, {kSumma}), one_dimension(4)};
}
// One key head for each of four columns.
const std::string kFourKeyHeads = "model.num_key_value_heads=4";

// Compares the losses and norms of all steps, and the weights at the end.
void expect_one_ranks_course(const Plan& plan, const std::vector<RankTrace>& have, const RankTrace& want,
                             const std::string& name) {
  for (size_t rank = 0; rank < have.size(); ++rank) {
    const size_t first = want.steps.size() - have[rank].steps.size();  // the steps before a resumed run
    for (size_t step = 0; step < have[rank].steps.size(); ++step) {
      const StepTrace &h = have[rank].steps[step], &w = want.steps[first + step];
      EXPECT_LT(relative_error(h.loss, w.loss), 1e-10) << name << ", step " << first + step + 1;
      EXPECT_LT(relative_error(h.norm, w.norm), 1e-10) << name << ", step " << first + step + 1;
    }
    const NamedError weight =
        worst_parameter(plan, have[rank].last().weights, want.last().weights, static_cast<int>(rank));
    EXPECT_LT(weight.error, 1e-8) << weight.name << ", " << name;
  }
}

SWEEP_TEST(TensorTraining, TwentyStepsOfAdamWAndOfDescentAreOneRanks) {
  const TinyRun run(long_run({kFourKeyHeads}));
  for (const double descent_rate : {0.0, 0.3}) {
    const Course course{.steps = kSteps, .descent_rate = descent_rate};
    const auto want = train_ranks(run.plan(1), run.data(), course)[0];
    EXPECT_LT(want.last().loss, 0.9 * want.steps[0].loss) << "nothing was learnt";
    for (const TensorCut& cut : sweep.of(meshes(), 3)) {
      const Plan plan = run.plan(cut.ranks, cut.keys);
      expect_one_ranks_course(plan, train_ranks(plan, run.data(), course), want,
                              fmt::format("{}, descent {}", cut.name(), descent_rate));
    }
  }
}

// The control, and the reason for plain descent: without clipping and weight decay, AdamW hides a wrong scale of the
// gradients; descent does not.
TEST(LongTensorTraining, DescentSeesAScaleThatAdamWHides) {
  const TinyRun run(long_run({kFourKeyHeads}));
  const TensorCut cut = grid(2, 2, 2, {"training.max_norm=0", "optimizer.weight_decay=0"});
  const auto error_of = [&](double descent_rate) {
    Course course{.steps = kSteps, .descent_rate = descent_rate};
    const Plan alone = run.plan(1, {"training.max_norm=0", "optimizer.weight_decay=0"}), plan = run.plan(8, cut.keys);
    const auto want = train_ranks(alone, run.data(), course)[0];
    course.fault = Fault::stray_mean;
    return relative_error(train_ranks(plan, run.data(), course)[0].last().loss, want.last().loss);
  };
  EXPECT_LT(error_of(0), kSeenInALoss);
  EXPECT_GT(error_of(0.3), kSeenInALoss);
}

SWEEP_TEST(TensorTraining, GoesOnToTheLastBitAndOnAnyOtherMesh) {
  const TinyRun run(long_run());
  const auto want = train_ranks(run.plan(1), run.data(), {.steps = kSteps})[0];
  const std::string saved = run.folder() + "/out/checkpoints/step-000010";
  for (const TensorCut& first : sweep.of(std::vector<TensorCut>{grid(2, 2, 2), grid(4, 1, 1), one_dimension(2)}, 2)) {
    const Plan plan = run.plan(first.ranks, first.keys);
    const auto straight = train_ranks(plan, run.data(), {.steps = kSteps});
    train_ranks(plan, run.data(), {.steps = 10, .save = true});
    const auto resumed = train_ranks(plan, run.data(), {.steps = kSteps, .resume_from = saved});
    for (size_t rank = 0; rank < straight.size(); ++rank) {
      ASSERT_EQ(resumed[rank].steps.size(), 10u);
      EXPECT_EQ(resumed[rank].last().loss, straight[rank].last().loss) << first.name();
      EXPECT_TRUE(resumed[rank].last().weights.equal(straight[rank].last().weights)) << first.name();
      EXPECT_TRUE(same_state(resumed[rank].optimizer_state, straight[rank].optimizer_state)) << first.name();
    }
    for (const TensorCut& second :
         sweep.of(std::vector<TensorCut>{grid(1, 2, 4), grid(2, 2, 1, {kSumma}), TensorCut{1, {}}}, 2)) {
      const Plan other = run.plan(second.ranks, second.keys);
      expect_one_ranks_course(other, train_ranks(other, run.data(), {.steps = kSteps, .resume_from = saved}), want,
                              first.name() + " then " + second.name());
    }
  }
}

std::string_view bytes_of(const at::Tensor& t) { return {static_cast<const char*>(t.const_data_ptr()), t.nbytes()}; }

// Number of comparisons between ranks that must hold the same values of a parameter, and of those that found a
// difference, by the axes of replication.
struct Copies {
  std::map<std::string, int> compared, different;
};
Copies compare_copies(const Plan& plan, const std::vector<RankTrace>& ranks) {
  Copies copies;
  for (int rank = 0; rank < plan.mesh.size(); ++rank) {
    const auto held = plan.parameters_of(rank);
    const FlatLayout flat = flat_layout(held);
    for (size_t p = 0; p < held.size(); ++p) {
      // The replica at coordinate 0 of every axis that does not shard the parameter.
      int twin = rank;
      std::string axes;
      for (const Axis& axis : plan.mesh.axes) {
        const auto& split = plan.groups[static_cast<size_t>(held[p].group)].split;
        if (axis.size == 1 || std::ranges::find(split, axis.name) != split.end()) continue;
        twin = plan.mesh.rank_at(twin, axis.name, 0);
        axes += (axes.empty() ? "" : "+") + axis.name;
      }
      if (twin == rank) continue;
      const FlatLayout twins = flat_layout(plan.parameters_of(twin));
      const auto hash = [&](int of, const FlatLayout& layout) {
        const at::Tensor& all = ranks[static_cast<size_t>(of)].last().weights;
        return xxh3(bytes_of(all.narrow(0, layout.parameter_offsets[p], held[p].shard_size())));
      };
      ++copies.compared[axes];
      if (hash(rank, flat) != hash(twin, twins)) ++copies.different[axes];
    }
  }
  return copies;
}

TEST(LongTensorTraining, AHundredStepsKeepEveryCopyAndEveryBit) {
  const TinyRun run(
      {"training.global_batch_size=8", "training.steps=100", "training.dtype=float32", "model.dropout=0.1"});
  const Plan plan = run.plan(8, grid(2, 2, 2).keys);
  const Course course{.steps = 100};
  const auto first = train_ranks(plan, run.data(), course), second = train_ranks(plan, run.data(), course);
  EXPECT_LT(first[0].last().loss, 0.9 * first[0].steps[0].loss) << "nothing was learnt";
  const Copies copies = compare_copies(plan, first);
  EXPECT_TRUE(copies.different.empty()) << testing::PrintToString(copies.different);
  // Matrices are replicated over depth, and four ranks have a twin. Gains are replicated over rows and depth, and six
  // do.
  const int64_t gains = 2 * 2 + 1, matrices = static_cast<int64_t>(plan.parameters.size()) - gains;
  EXPECT_EQ(copies.compared, (std::map<std::string, int>{{"depth", 4 * matrices}, {"row+depth", 6 * gains}}));
  for (size_t rank = 0; rank < first.size(); ++rank) {
    EXPECT_TRUE(first[rank].last().weights.equal(second[rank].last().weights)) << rank;
    EXPECT_TRUE(same_state(first[rank].optimizer_state, second[rank].optimizer_state)) << rank;
    for (size_t step = 0; step < 100; ++step) EXPECT_EQ(first[rank].steps[step].loss, second[rank].steps[step].loss);
  }
  // Control: without the reduction of a bucket, replicas drift apart.
  const auto apart = train_ranks(plan, run.data(), {.steps = 2, .fault = Fault::dropped_reduction});
  EXPECT_FALSE(compare_copies(plan, apart).different.empty());
}

// Other meshes have replicas of other kinds. Gains are also replicated over columns if the stream's width is unsharded.
TEST(TensorTraining, CopiesOfEveryKindStayInStep) {
  const TinyRun run({"training.global_batch_size=8", "training.dtype=float32"});
  struct Case {
    TensorCut cut;
    std::map<std::string, int> copies;
  };
  const int gains = 2 * 2 + 1, matrices = static_cast<int>(run.plan(1).parameters.size()) - gains;
  for (const Case& c :
       std::vector<Case>{{one_dimension(2, {}, 2), {{"data", 2 * matrices}, {"column+data", 3 * gains}}},
                         {one_dimension(2, {kNoSequence}), {{"column", gains}}},
                         {grid(2, 1, 1), {{"row", gains}}},
                         {grid(1, 2, 2), {{"depth", 2 * (matrices + gains)}}}}) {
    const Plan plan = run.plan(c.cut.ranks, c.cut.keys);
    const Copies copies = compare_copies(plan, train_ranks(plan, run.data(), {.steps = 5}));
    EXPECT_TRUE(copies.different.empty()) << testing::PrintToString(copies.different) << " on " << c.cut.name();
    EXPECT_EQ(copies.compared, c.copies) << c.cut.name();
    // Control: if ranks start with different weights, all replicas of every kind differ.
    const auto apart = train_ranks(plan, run.data(), {.steps = 1, .prepare = [](Session& session, int rank) {
                                                        session.weights().masters().add_(0.001 * rank);
                                                        session.weights().publish();
                                                      }});
    EXPECT_EQ(compare_copies(plan, apart).different, c.copies) << c.cut.name();
  }
}

SWEEP_TEST(TensorTraining, CopiesOfBiasesStayInStep) {
  const TinyRun run(
      {"training.global_batch_size=8", "training.dtype=float32", "model.attention_bias=true", "model.mlp_bias=true"});
  for (const TensorCut& cut :
       sweep.of(std::vector<TensorCut>{grid(2, 2, 2), grid(2, 2, 1, {kSumma}), one_dimension(2, {}, 2)}, 2)) {
    const Plan plan = run.plan(cut.ranks, cut.keys);
    const Copies copies = compare_copies(plan, train_ranks(plan, run.data(), {.steps = 5}));
    EXPECT_TRUE(copies.different.empty()) << testing::PrintToString(copies.different) << " on " << cut.name();
    const auto apart = train_ranks(plan, run.data(), {.steps = 1, .prepare = [](Session& session, int rank) {
                                                        session.weights().masters().add_(0.001 * rank);
                                                        session.weights().publish();
                                                      }});
    EXPECT_EQ(compare_copies(plan, apart).different, copies.compared) << cut.name();
  }
}

// Ranks are late more than a thousand times, each time by a random delay below 3 ms. The delays are in backward, after
// a weight's gradient is written. With recomputation they also delay the forward of the next block.
SWEEP_TEST(TensorDelays, AThousandChangeNoBit) {
  const TinyRun run(
      {"training.global_batch_size=8", "training.dtype=float32", "training.local_batch_size=1", kRecompute});
  for (const TensorCut& cut : sweep.of(std::vector<TensorCut>{grid(2, 2, 2), grid(2, 2, 2, {kSumma})}, 2)) {
    const Plan plan = run.plan(cut.ranks, cut.keys);
    const auto in_time = train_ranks(plan, run.data(), {.steps = 8});
    std::atomic<int> delays = 0;
    const auto late = train_ranks(plan, run.data(),
                                  {.steps = 8, .prepare = [&](Session& session, int rank) {
                                     const auto random = std::make_shared<Random>(static_cast<uint64_t>(100 + rank));
                                     session.weights().on_gradient =
                                         [&delays, random, next = session.weights().on_gradient](const Weight& weight) {
                                           std::this_thread::sleep_for(std::chrono::microseconds(random->below(3000)));
                                           ++delays;
                                           next(weight);
                                         };
                                   }});
    EXPECT_GE(delays, 1000);
    for (size_t rank = 0; rank < late.size(); ++rank) {
      for (size_t step = 0; step < 8; ++step) {
        EXPECT_EQ(late[rank].steps[step].loss, in_time[rank].steps[step].loss) << cut.name();
        EXPECT_TRUE(late[rank].steps[step].gradients.equal(in_time[rank].steps[step].gradients)) << cut.name();
      }
      EXPECT_TRUE(late[rank].last().weights.equal(in_time[rank].last().weights)) << cut.name();
    }
  }
}

}  // namespace
}  // namespace orthant::tensor_training_test
