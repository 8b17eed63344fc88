// OutputShard without messages: the shards of all ranks run one after another, and together equal one device. The
// controls replace one of the statistics that ranks exchange by the rank's own.
#include "base/errors.h"
#include "parallel/vocabulary/output_shard.h"
#include "tests/parallel/vocabulary/layers/output_layer.h"

namespace orthant::output_shard_test {
namespace {

using Mistake = std::function<void(const at::Tensor& own, FullSoftmax& whole)>;

// Runs the shards of all ranks one after another. mistake() may change the full softmax that a rank reads. early:
// compute the products before the softmax is known, as in algorithm 2.
OutputResult shares(const OutputInputs& in, int ranks, bool early, const Mistake& mistake) {
  const at::NoGradGuard no_grad;
  const auto slices = even_slices(in.vocabulary, ranks);
  const OutputTokens tokens{in.labels_N, in.weights_N, in.loss_scale};
  std::vector<Weight> heads;
  for (const Range& rows : slices) {
    heads.push_back({.value = in.w_VC.narrow(0, rows.begin, rows.size()),
                     .gradient = at::zeros({rows.size(), in.w_VC.size(1)}, at::kDouble)});
  }
  std::vector<OutputShard> all;
  std::vector<at::Tensor> statistics, summands, gradients;
  for (size_t rank = 0; rank < slices.size(); ++rank) {
    all.emplace_back(VocabularySlice{slices[rank], in.vocabulary}, OutputLoss{}, heads[rank], in.x_NC, tokens);
    statistics.push_back(all.back().statistics());
    if (early) summands.push_back(all.back().multiply());
  }
  const FullSoftmax whole = compute_full_softmax(at::stack(statistics), {}, in.vocabulary, tokens);
  OutputResult result{.loss = whole.losses_N.sum().item<double>(), .dx_NC = at::zeros_like(in.x_NC)};
  for (size_t rank = 0; rank < slices.size(); ++rank) {
    FullSoftmax read = whole;
    mistake(statistics[rank], read);
    if (early) {
      all[rank].input_gradient(read, summands[rank]);
      result.dx_NC.add_(summands[rank]);
    }
    const at::Tensor dx = all[rank].gradients(read);
    if (!early) result.dx_NC.add_(dx);
    gradients.push_back(heads[rank].gradient);
  }
  result.dw_VC = at::cat(gradients);
  return result;
}

TEST(OutputShard, NeedsEveryStatistic) {
  const OutputInputs in = output_inputs();
  const OutputResult want = one_device(in);
  for (const bool early : {false, true}) {
    EXPECT_LE(largest_error(shares(in, 3, early, [](const auto&, auto&) {}), want), 1e-13);
    const auto seen = [&](const Mistake& mistake) {
      const OutputResult have = shares(in, 3, early, mistake);
      return std::min(relative_error(have.dx_NC, want.dx_NC), relative_error(have.dw_VC, want.dw_VC));
    };
    EXPECT_GT(seen([](const at::Tensor& own, FullSoftmax& w) { w.maximum_N = own[0]; }), kSeenInAGradient)
        << "the maximum of all ranks forgotten";
    EXPECT_GT(seen([](const at::Tensor& own, FullSoftmax& w) { w.sum_N = own[1]; }), kSeenInAGradient)
        << "the sum of all ranks forgotten";
    EXPECT_GT(seen([](const at::Tensor& own, FullSoftmax& w) { w.maximum_N = own[0], w.sum_N = own[1]; }),
              kSeenInAGradient)
        << "the local softmax not rescaled";
    EXPECT_GT(seen([](const at::Tensor& own, FullSoftmax& w) { w.picked_N = own[2] + 1; }), kSeenInAGradient)
        << "the label's logit";
  }
}

// A shard without rows reports a maximum of minus infinity, and zeros.
TEST(OutputShard, WithoutRowsHasEmptyStatistics) {
  const OutputInputs in = output_inputs(8, 4, 10);
  const Weight none{.value = at::empty({0, 4}, at::kDouble), .gradient = at::empty({0, 4}, at::kDouble)};
  OutputShard share({{10, 10}, 10}, {}, none, in.x_NC, {in.labels_N});
  const at::Tensor statistics = share.statistics();
  EXPECT_TRUE(statistics[0].eq(-INFINITY).all().item<bool>());
  EXPECT_TRUE(statistics.narrow(0, 1, 2).eq(0).all().item<bool>());
}

TEST(OutputShard, RefusesLabelsOutsideTheVocabulary) {
  const OutputInputs in = output_inputs(8, 4, 10);
  const Weight head{.value = in.w_VC, .gradient = at::zeros_like(in.w_VC)};
  for (const int64_t label : {-1, 10}) {
    const at::Tensor labels = in.labels_N.clone();
    labels[3] = label;
    EXPECT_THROW(OutputShard({{0, 10}, 10}, {}, head, in.x_NC, {labels}), DataError) << label;
  }
}

// More tokens than fit in one chunk give the same results.
TEST(OutputShard, CutsTokensIntoChunks) {
  const int64_t vocabulary = 5000, chunk = loss_chunk_rows(vocabulary, false);
  const OutputInputs in = output_inputs(2 * chunk + 3, 6, vocabulary);
  EXPECT_LE(largest_error(shares(in, 1, false, [](const auto&, auto&) {}), one_device(in)), 1e-13);
}

}  // namespace
}  // namespace orthant::output_shard_test
