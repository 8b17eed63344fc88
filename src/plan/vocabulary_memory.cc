#include "plan/vocabulary_memory.h"

#include <algorithm>

#include "mesh/staging.h"
#include "plan/from_config.h"
#include "plan/vocabulary.h"

namespace orthant {
namespace {

// What a rank of a tensor mesh needs for a while to have whole what others hold parts of, or to sum it up.
struct Sharing {
  Sharing(const TensorPlan& mesh, int64_t stream, int64_t of_weight, int64_t of_sum) {
    const auto part_of = [](int64_t all, int ranks) { return (all + ranks - 1) / ranks; };
    if (mesh.columns > 1) {
      const bool cut = mesh.stream != StreamCut::none;
      const int64_t part = part_of(stream, mesh.columns);
      arriving = cut ? stream : 0;
      summing_columns = stream + (cut ? part : 0) + staging_bytes(part, mesh.columns);
    }
    if (mesh.rows > 1) {
      weight = of_weight, sum = of_sum;
      const int64_t part = part_of(sum, mesh.rows);
      summing_rows = sum + part + staging_bytes(part, mesh.rows);
    }
  }
  int64_t arriving = 0;         // of the stream, as it comes from columns, beside what is made of that
  int64_t summing_columns = 0;  // a copy of its summand by columns, the part that is here, and others' summands
  int64_t weight = 0, sum = 0;  // of all rows' columns of it: 0 where no rows share it
  int64_t summing_rows = 0;     // as summing_columns, of the sum
};

}  // namespace

VocabularyMemory vocabulary_memory(const Plan& plan, int rank, int64_t sequences) {
  if (plan.vocabulary.empty()) return {};
  const int64_t tokens = sequences * plan.num_places(rank), rows = plan.vocabulary_rows(rank).size();
  const int64_t element = dtype_bytes(plan.config.training.dtype), wide = std::max<int64_t>(element, 4);
  const int64_t chunk = std::min(tokens, loss_chunk_rows(std::max<int64_t>(1, rows)));
  const int64_t width = plan.architecture.hidden_size, stream = tokens * width;
  const bool naive = algorithm_of(plan)->rounds() == 2, early = sums_early(plan);
  const bool shared = plan.tensor.rows * plan.tensor.columns > 1;
  const OutputLoss loss = output_loss_of(plan.config);
  const bool smooths = loss.smoothing > 0;
  const int64_t each = loss.kept_of_logit();
  const int64_t part = plan.stream_bytes(rank, sequences), exponentials = each * tokens * rows * element;
  const Sharing sharing(plan.tensor, stream * element, rows * width * element, rows * width * wide);
  VocabularyMemory memory;
  const int64_t rounded = wide > element ? stream * element : 0;
  // Early products are sums over columns already, of what is here; alone they are wide, and rounded to be summed.
  memory.kept = exponentials + stream * element +
                (!early   ? 0
                 : shared ? (smooths ? 3 : 2) * part
                          : each * stream * wide + rounded);
  // Wide logits of a chunk, in the naive order of all tokens; exponentials that are as wide have their memory.
  const int64_t logits = wide > element ? (naive ? tokens : chunk) * rows * wide : 0;
  memory.logits = naive ? logits : 0;
  memory.output = memory.kept + logits;
  // x times factors of tokens, beside the input's gradient where S has not made it; or products for that, and labels'
  // rows.
  const int64_t scaled = stream * wide + rounded, products = early ? 0 : each * stream * wide;
  memory.backward = products + scaled;
  // While the rank computes something else, its labels' rows are taken into account, and what is narrow made wide;
  // where nothing is, the sum has the products' memory, and is counted twice.
  memory.streams = 4 * part + (!early || wide == element ? 0 : shared ? 4 * part : stream * wide + rounded);
  if (!shared) return memory;
  memory.output = stream * element + sharing.weight +
                  std::max({sharing.arriving, sharing.weight, exponentials + logits,
                            early ? exponentials + each * stream * wide + rounded + sharing.summing_columns : 0,
                            early ? exponentials + (smooths ? 2 : 1) * part + stream * element +
                                        sharing.summing_columns
                                  : 0});
  // The exponentials are gone where sums are formed.
  const int64_t with_input = early ? 0 : sharing.weight + stream * element;
  memory.backward = std::max({with_input + sharing.sum + scaled, early ? 0 : sharing.weight + products + scaled,
                              early ? 0 : 2 * sharing.weight,
                              with_input + sharing.sum + sharing.summing_rows - exponentials,
                              with_input + (early ? 0 : sharing.summing_columns) - exponentials});
  memory.lookup =
      std::max({2 * sharing.weight, sharing.weight + stream * element, stream * element + sharing.summing_columns});
  memory.lookup_backward = stream * element + std::max(sharing.arriving, sharing.sum + sharing.summing_rows);
  return memory;
}

}  // namespace orthant
