// Counts the tensors that S, Z, T, TW, E and EB keep and need, without and with a tensor mesh.
#include "plan/vocabulary_memory.h"

#include <algorithm>

#include "config/from_config.h"
#include "mesh/staging.h"
#include "plan/vocabulary.h"

namespace orthant {
namespace {

// Temporary bytes on a rank of a tensor mesh while it gathers the shards of other ranks, or forms sums with them.
struct Sharing {
  Sharing(const TensorPlan& mesh, int64_t stream, int64_t of_weight, int64_t of_sum, bool over_nccl) {
    const auto part_of = [](int64_t all, int ranks) { return (all + ranks - 1) / ranks; };
    if (mesh.columns > 1) {
      const bool cut = mesh.stream != StreamSharding::none;
      const int64_t part = part_of(stream, mesh.columns);
      arriving = cut ? stream : 0;
      summing_columns = stream + (cut ? part : 0) + reduction_buffer_bytes(part, mesh.columns, over_nccl);
    }
    if (mesh.rows > 1) {
      weight = of_weight, sum = of_sum;
      const int64_t part = part_of(sum, mesh.rows);
      summing_rows = sum + part + reduction_buffer_bytes(part, mesh.rows, over_nccl);
    }
  }
  int64_t arriving = 0;  // the residual stream as received from columns, in addition to the tensor put together from it
  // A copy of the rank's partial sum in the order of columns, its shard of the sum, and the partial sums of others.
  int64_t summing_columns = 0;
  int64_t weight = 0, sum = 0;  // the weight gathered over rows, and its gradient; 0 if there is one row
  int64_t summing_rows = 0;     // as summing_columns, for the weight's gradient over rows
};

}  // namespace

VocabularyMemory vocabulary_memory(const Sharding& plan, int rank, int64_t sequences) {
  if (plan.vocabulary.empty()) return {};
  const int64_t tokens = sequences * plan.num_token_positions(rank), rows = plan.vocabulary_rows(rank).size();
  const int64_t element = dtype_bytes(plan.config.training.dtype), wide = std::max<int64_t>(element, 4);
  const int64_t chunk = std::min(tokens, loss_chunk_rows(std::max<int64_t>(1, rows), plan.config.run.device == "cuda"));
  const int64_t width = plan.architecture.hidden_size, stream = tokens * width;
  const bool naive = algorithm_of(plan)->rounds() == 2, early = sums_input_gradient_early(plan);
  const bool shared = plan.tensor.rows * plan.tensor.columns > 1;
  const OutputLoss loss = make_output_loss(plan.config);
  const bool smooths = loss.smoothing > 0;
  const int64_t each = loss.kept_of_logit();
  const int64_t part = plan.stream_bytes(rank, sequences), exponentials = each * tokens * rows * element;
  const Sharing sharing(plan.tensor, stream * element, rows * width * element, rows * width * wide,
                        uses_nccl(plan.config));
  VocabularyMemory memory;
  const int64_t rounded = wide > element ? stream * element : 0;
  // The early products of S. On a tensor mesh they are kept as the rank's shard of their sums over columns. Otherwise
  // they are kept in the wide dtype, with a rounded copy for the sum over ranks.
  memory.kept = exponentials + stream * element +
                (!early   ? 0
                 : shared ? (smooths ? 3 : 2) * part
                          : each * stream * wide + rounded);
  // Wide logits: of one chunk of tokens, or of all tokens with the naive algorithm. Exponentials that are equally wide
  // use the same memory.
  const int64_t logits = wide > element ? (naive ? tokens : chunk) * rows * wide : 0;
  memory.logits = naive ? logits : 0;
  memory.output = memory.kept + logits;
  // T holds the input x scaled by the factors of tokens together with the input's gradient, unless S has made that.
  // Before that it holds the products for this gradient together with the labels' rows, which takes the same bytes.
  const int64_t scaled = stream * wide + rounded, products = early ? 0 : each * stream * wide;
  memory.backward = products + scaled;
  memory.embedding = part;
  // There are four such tensors: the output layer's inputs of two microbatches, because the next one is received ahead,
  // and the gradients of both layers.
  // With early products, the labels' rows are added in the background of other computation, and narrow tensors are made
  // wide for that. If none is narrow, the sum uses the memory of the products, so that it is counted twice already.
  memory.streams = 4 * part + (!early || wide == element ? 0 : shared ? 4 * part : stream * wide + rounded);
  if (!shared) return memory;
  memory.output = stream * element + sharing.weight +
                  std::max({sharing.arriving, sharing.weight, exponentials + logits,
                            early ? exponentials + each * stream * wide + rounded + sharing.summing_columns : 0,
                            early ? exponentials + (smooths ? 2 : 1) * part + stream * element +
                                        sharing.summing_columns
                                  : 0});
  // The exponentials are already freed when the sums are formed.
  const int64_t with_input = early ? 0 : sharing.weight + stream * element;
  memory.backward = std::max({with_input + sharing.sum + scaled, early ? 0 : sharing.weight + products + scaled,
                              early ? 0 : 2 * sharing.weight,
                              with_input + sharing.sum + sharing.summing_rows - exponentials,
                              with_input + (early ? 0 : sharing.summing_columns) - exponentials});
  const int64_t token_ids = tokens * plan.tensor.rows * static_cast<int64_t>(sizeof(int64_t));
  if (embedding_move(plan.tensor, rows, tokens, width, element, wide) == EmbeddingMove::results) {
    // The results of a lookup, or their gradients, leave and arrive; in forward they are then joined.
    memory.lookup = token_ids + std::max(3 * stream * element, stream * element + sharing.summing_columns);
    memory.lookup_backward = token_ids + stream * element + std::max(sharing.arriving, 2 * stream * element);
    return memory;
  }
  memory.lookup =
      std::max({2 * sharing.weight, sharing.weight + stream * element, stream * element + sharing.summing_columns});
  memory.lookup_backward = stream * element + std::max(sharing.arriving, sharing.sum + sharing.summing_rows);
  return memory;
}

}  // namespace orthant
