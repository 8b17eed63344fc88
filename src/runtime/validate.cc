// Validation: a row of forwards only, carried out by the same interpreter as training.
#include <ATen/ATen.h>

#include <algorithm>

#include "runtime/session.h"

namespace orthant {

Session::Validation Session::validate(const Loader& held_out, int64_t batches,
                                      std::span<const int32_t> bytes_of_token) {
  const at::NoGradGuard no_grad;
  const auto& training = plan_.config.training;
  const std::vector<Action> row = plan_.with_gathers(select_forwards(parts_.row));
  const bool judges = reports_loss() && plan_.pipeline_rank(comm_.rank()) == plan_.stages.back().owner;
  at::Tensor sums = at::zeros({3}, at::kDouble);
  double* sum = sums.mutable_data_ptr<double>();
  for (int64_t i = 0; i < batches; ++i) {
    const int64_t first = i * training.global_batch_size;
    if (first >= held_out.num_samples()) break;
    const int64_t size = std::min(training.global_batch_size, held_out.num_samples() - first);
    DataShard data_shard = make_data_shard(size, training.local_batch_size, static_cast<int>(plan_.data_shards.size()),
                                           plan_.data_shard_index(comm_.rank()));
    std::vector<int64_t> sequences = microbatch_sequences(data_shard);
    // Rows of a tensor mesh take part in the same collectives. A rank without sequences therefore reads the first one,
    // and ignores its labels.
    if (plan_.tensor.rows > 1) std::ranges::replace(sequences, 0, 1);
    sequences.resize(parts_.data_shard.microbatches.size());  // a smaller batch may have fewer microbatches

    std::vector<bool> counted(sequences.size(), !judges);
    const auto load = [&](int microbatch) {
      const auto m = static_cast<size_t>(microbatch);
      const bool idle = data_shard.microbatches[m].size() == 0;
      const int64_t begin = first + (idle ? 0 : data_shard.microbatches[m].begin);
      Microbatch batch = parts_.to_microbatch(held_out.batch(begin, sequences[m]));
      if (idle) batch.labels_BT.fill_(kIgnoredLabel);
      if (counted[m]) return batch;
      counted[m] = true;
      const at::Tensor labels = batch.labels_BT.cpu();
      for (const int64_t label : std::span(labels.const_data_ptr<int64_t>(), static_cast<size_t>(labels.numel()))) {
        if (label == kIgnoredLabel) continue;
        sum[1] += 1;
        sum[2] += bytes_of_token[static_cast<size_t>(label)];
      }
      return batch;
    };
    at::Tensor nats;
    stages_.run(row, {.sequences = sequences,
                      .load = load,
                      .announce = activity_reporter(row.size(), fmt::format("of validation, batch {}", i + 1)),
                      .loss = [&](const at::Tensor& nats_so_far) { nats = nats_so_far; }});
    if (judges && nats.defined()) sum[0] += nats.item<double>();
  }
  comm_.all_reduce_small(sums, all_axes(comm_.mesh())).wait();
  return {sum[0], static_cast<int64_t>(sum[1]), static_cast<int64_t>(sum[2])};
}

}  // namespace orthant
