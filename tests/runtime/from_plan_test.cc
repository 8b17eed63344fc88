// Microbatches made from batches: tokens, positions in the document, and positions in the sequence.
#include "runtime/from_plan.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "base/labels.h"
#include "tests/support/says.h"

namespace orthant::from_plan_test {
namespace {

std::vector<int64_t> values(const at::Tensor& t) {
  const at::Tensor flat = t.contiguous();
  return {flat.const_data_ptr<int64_t>(), flat.const_data_ptr<int64_t>() + flat.numel()};
}

// Positions restart at 0 in each document. Dropout is drawn by the positions in the sequence, which do not restart.
TEST(MicrobatchOfDocuments, KeepsThePlacesOfItsTokens) {
  const std::vector<int64_t> all = {0, 1, 2, 3, 4, 5}, some = {1, 2, 5};
  for (const int64_t sequences : {1, 2}) {
    const auto tokens = static_cast<size_t>(sequences * 6);
    const Batch batch{.sequences = sequences,
                      .seq_len = 6,
                      .tokens = std::vector<int64_t>(tokens, 1),
                      .labels = std::vector<int64_t>(tokens, 1),
                      .sample_ids = std::vector<int64_t>(static_cast<size_t>(sequences)),
                      .document_starts = {static_cast<size_t>(sequences), {0, 4}},
                      .lengths = {}};
    const Microbatch unsharded = to_microbatch(batch, all, true);
    EXPECT_EQ(values(unsharded.sequence_positions_T), all) << sequences;
    EXPECT_EQ(values(unsharded.positions_BT[sequences - 1]), (std::vector<int64_t>{0, 1, 2, 3, 0, 1})) << sequences;
    const Microbatch shard = to_microbatch(batch, some, true);
    EXPECT_EQ(values(shard.sequence_positions_T), some) << sequences;
    EXPECT_EQ(values(shard.positions_BT[sequences - 1]), (std::vector<int64_t>{1, 2, 1})) << sequences;
  }
}

// Kernels of a GPU do not check ids, so the check comes before the copy, which needs a device.
TEST(MicrobatchOnADevice, IsCheckedBeforeItIsCopied) {
  Microbatch batch;
  batch.tokens_BT = at::zeros({2, 3}, at::kLong), batch.labels_BT = at::zeros({2, 3}, at::kLong);
  const auto refusal = [&] { return message_of<DataError>([&] { on_device(batch, at::Device(at::kCUDA, 0), 10); }); };
  batch.labels_BT[0][1] = kIgnoredLabel;  // valid
  batch.labels_BT[1][0] = 10;
  EXPECT_EQ(refusal(), "label 10 at position 3 of the microbatch is outside the vocabulary of 10");
  batch.tokens_BT[1][2] = -1;
  EXPECT_EQ(refusal(), "token -1 at position 5 of the microbatch is outside the vocabulary of 10");
}

}  // namespace
}  // namespace orthant::from_plan_test
