// Text on tensor meshes: what one rank writes from the same weights, byte for byte, though no rank holds a whole model.
#include <gtest/gtest.h>

#include "runtime/sample.h"
#include "tests/support/says.h"
#include "tests/support/tensor_cuts.h"

namespace orthant {
namespace {

using Write = std::string (*)(const Weights&, const Plan&, const TrainingData&, Comm&);

// What each rank has, by rank; nothing of those that take no part.
std::vector<std::string> written(const TinyRun& run, const TensorCut& cut, Write write, bool all_take_part) {
  const Plan plan = run.plan(cut.ranks, cut.keys);
  std::vector<std::string> texts(static_cast<size_t>(cut.ranks));
  run_ranks(cut.ranks, [&](const Rendezvous& meeting, int rank) {
    Comm comm(plan.mesh, rank, meeting, {.timeout_s = 30});
    Session session(plan, run.data().train, comm);
    session.weights().initialize(3);
    if (!all_take_part && plan.first_like(rank) != rank) return;
    texts[static_cast<size_t>(rank)] = write(session.weights(), plan, run.data(), comm);
  });
  return texts;
}

void expect_one_ranks_text(const TinyRun& run, Write write, bool all_take_part, size_t at_least) {
  const std::string one = written(run, {1, {}}, write, all_take_part)[0];
  EXPECT_GT(one.size(), at_least);
  for (const TensorCut& cut :
       {one_dimension(2), one_dimension(2, {kNoSequence}), one_dimension(2, {}, 2), grid(2, 2, 1), grid(2, 2, 2),
        grid(2, 2, 2, {kSumma}), grid(4, 1, 1), grid(1, 2, 4), grid(1, 1, 2), grid(2, 2, 1, {kRing}, 2),
        one_dimension(2, {kUlysses}, 2)}) {
    const std::vector<std::string> texts = written(run, cut, write, all_take_part);
    const Plan plan = run.plan(cut.ranks, cut.keys);
    for (int rank = 0; rank < cut.ranks; ++rank) {
      const bool takes_part = all_take_part || plan.first_like(rank) == rank;
      EXPECT_EQ(texts[static_cast<size_t>(rank)], takes_part ? one : "") << cut.name() << ", rank " << rank;
    }
  }
}

TEST(TensorSample, IsOneRanks) {
  for (const std::vector<std::string>& more :
       {std::vector<std::string>{}, {"model.tie_word_embeddings=true"}, {"training.dtype=float32"},
        {"model.sliding_window=5"}}) {
    std::vector<std::string> keys = kBatch;
    keys.push_back("model.max_position_embeddings=64");
    keys.insert(keys.end(), more.begin(), more.end());
    expect_one_ranks_text(TinyRun(keys), sample_text, false, 30);
  }
}

TEST(TensorSample, OfMaskedWordsIsOneRanks) {
  std::vector<std::string> keys = kBatch;
  keys.push_back("model.objective=masked");
  expect_one_ranks_text(TinyRun(keys), filled_text, true, 40);
}

}  // namespace
}  // namespace orthant
