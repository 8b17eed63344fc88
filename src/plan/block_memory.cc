// Follows the tensors of a block through forward, B, I and W, in the order in which the model allocates and frees them.
// Each peak is a maximum over these events.
#include "plan/block_memory.h"

#include <algorithm>
#include <utility>

namespace orthant {
namespace {

// Follows bytes that are allocated and freed one after the other, and records their peak.
class MemoryTrace {
 public:
  void take(int64_t bytes) { for_a_while(bytes), now_ += bytes; }
  void free(int64_t bytes) { now_ -= bytes; }
  void for_a_while(int64_t bytes) { most_ = std::max(most_, now_ + bytes); }
  int64_t now() const { return now_; }
  int64_t most() const { return most_; }

 private:
  int64_t now_ = 0, most_ = 0;
};

using Ranges = std::vector<RecomputedRange>;

// Returns the range that contains the operation, or nullptr.
const RecomputedRange* range_of(const Ranges& ranges, size_t operation) {
  const auto found =
      std::ranges::find_if(ranges, [&](const RecomputedRange& range) { return range.contains(operation); });
  return found == ranges.end() ? nullptr : &*found;
}

// Follows the tensors of operations that run forward. A tensor is kept if backward needs it; all others are freed as
// soon as the next operation has read them.
class ForwardTrace {
 public:
  ForwardTrace(const BlockTensors& block, MemoryTrace& held) : b_(block), held_(held) {}

  // Runs one operation. `keeps`: operations keep tensors for backward; `keeps_input`: the input is kept in any case.
  void run(size_t i, bool keeps, bool keeps_input) {
    const auto& step = b_.steps[i];
    const int64_t stream = b_.sizes.stream;
    switch (step.kind) {
      case OperationKind::norm:
        if (added_ > 0) {
          held_.take(stream);  // the sum
          held_.free(std::exchange(stream_, keeps || keeps_input ? 0 : stream));
        }
        held_.take(step.out + step.statistics);
        held_.free(std::exchange(added_, 0) + (keeps ? 0 : step.statistics));
        value_ = step.out;
        break;
      case OperationKind::linear:
        held_.for_a_while(step.product.forward);
        replace_value(step.out, (keeps || keeps_input) ? 0 : value_);
        break;
      case OperationKind::attention:
        held_.take(b_.attention.saved_bytes);
        held_.free((keeps_input ? 0 : value_) + (keeps ? 0 : b_.attention.saved_bytes - step.out));
        value_ = keeps ? 0 : step.out;  // attention keeps its output
        break;
      case OperationKind::local:
        held_.take(step.statistics);
        replace_value(step.out, (keeps || keeps_input) ? 0 : value_);
        if (!keeps) held_.free(step.statistics);
        break;
    }
    if (!step.to_stream) return;
    if (b_.has_dropout) held_.for_a_while(stream);
    added_ = std::exchange(value_, 0);
  }

  // The sum that is the block's output.
  void end() { held_.for_a_while(b_.sizes.stream); }

 private:
  void replace_value(int64_t out, int64_t freed) {
    held_.take(out);
    held_.free(freed);
    value_ = out;
  }

  const BlockTensors& b_;
  MemoryTrace& held_;
  // Bytes of tensors that nothing keeps for backward: the last output, the product that the next norm adds to the
  // stream, and the stream.
  int64_t value_ = 0, added_ = 0, stream_ = 0;
};

// Follows the backward of a block, which begins with the block's kept tensors and the gradient of its output. `splits`:
// inputs of products and gradients of their outputs stay for W. `holds`: the caller holds the output's gradient too.
class BackwardTrace {
 public:
  BackwardTrace(const BlockTensors& b, const Ranges& recomputed, bool splits, bool holds)
      : b_(b), recomputed_(recomputed), splits_(splits), holds_(holds) {
    held_.take(b.sizes.stream);
    for (size_t i = b.steps.size(); i-- > 0;) {
      const RecomputedRange* range = range_of(recomputed, i);
      if (b.steps[i].to_stream && b.has_dropout) held_.take(b.sizes.stream);  // the gradient before dropout
      if (range != nullptr && range->last_product() == i) run_again(*range);
      run(i, range);
    }
    if ((holds || recomputing_holds_) && !weights_read_stream_gradient()) held_.free(b.sizes.stream);
  }

  int64_t most() const { return held_.most(); }
  int64_t now() const { return held_.now(); }

 private:
  // Runs the range forward, except for its last product, and keeps all that its backward reads.
  void run_again(const RecomputedRange& range) {
    ForwardTrace again(b_, held_);
    for (size_t i = range.begin; i < range.last_product(); ++i) again.run(i, true, i == range.begin);
  }
  void run(size_t i, const RecomputedRange* range) {
    const auto& step = b_.steps[i];
    switch (step.kind) {
      case OperationKind::norm:
        // The recomputation of a range holds the gradient of the stream after it until it ends.
        recomputing_holds_ = recomputing_holds_ || (given_ && range != nullptr && range->begin < i);
        norm(step);
        break;
      case OperationKind::linear:
        linear(step, i > 0 && b_.steps[i - 1].kind == OperationKind::attention);
        break;
      case OperationKind::attention:
        attention(step);
        if (range != nullptr && range->begin == i) held_.free(step.in);
        break;
      case OperationKind::local:
        held_.take(step.in);  // then the gradient of the output and what was kept are freed
        held_.free(step.out + step.in + step.statistics);
        break;
    }
  }

  // Without dropout, the gradient of the stream is that of a product's output, which W reads.
  bool weights_read_stream_gradient() const { return splits_ && !b_.has_dropout; }
  void free_unless_for_weights(int64_t bytes) {
    if (!splits_) held_.free(bytes);
  }

  void linear(const BlockTensors::Step& step, bool input_belongs_to_attention) {
    held_.for_a_while(splits_ ? step.product.for_input : step.product.backward);
    held_.take(step.in);
    const int64_t kept_input = input_belongs_to_attention ? 0 : step.in;
    const int64_t gradient = !step.to_stream ? step.out : b_.has_dropout ? b_.sizes.stream : 0;
    free_unless_for_weights(kept_input + gradient);
    // W reads the gradient of the product's own output, which replaces that of the exchanged heads.
    if (splits_ && !step.to_stream) held_.free(step.out - step.product_out);
  }
  // Takes the gradient of the norm's input. Frees the gradients of its output and of the stream after it, and its kept
  // input. The caller may also hold the gradient of the block's output.
  void norm(const BlockTensors::Step& step) {
    const bool stays = weights_read_stream_gradient() || (given_ && (holds_ || recomputing_holds_));
    given_ = false;
    held_.take(step.in);
    held_.free(step.out + step.in + step.statistics + (stays ? 0 : b_.sizes.stream));
  }
  // The kernel returns gradients of queries, keys and values per query head. At first they exist as returned and as
  // contiguous copies, later as separate tensors and joined into one. If sequences are sharded, temporary_bytes
  // includes the kernel's results.
  void attention(const BlockTensors::Step& step) {
    const int64_t left = b_.shards_sequences ? 0 : 6 * step.out;
    held_.for_a_while(std::max(2 * step.in + step.out, left) + b_.attention.temporary_bytes);
    held_.take(step.in);
    held_.free(step.out + b_.attention.saved_bytes - (splits_ ? step.out : 0));
  }

  const BlockTensors& b_;
  const Ranges& recomputed_;
  bool splits_, holds_;
  bool given_ = true;  // no norm has freed the gradient of the block's output yet
  bool recomputing_holds_ = false;
  MemoryTrace held_;
};

}  // namespace

int64_t block_bytes(const std::vector<ColumnOperation>& block, const BlockSizes& sizes, const Ranges& recomputed) {
  int64_t bytes = 0;
  bool input_is_kept = false;  // attention keeps its output, which the next product reads
  for (size_t i = 0; i < block.size(); ++i) {
    const ColumnOperation& own = block[i];
    const bool attention = own.operation.kind == OperationKind::attention;
    if (const RecomputedRange* range = range_of(recomputed, i)) {
      if (range->begin == i && !input_is_kept) bytes += sizes.input_of(own);
      input_is_kept = false;
      continue;
    }
    if (attention) bytes += sizes.attention;
    if (own.operation.keeps_input() && !input_is_kept) bytes += sizes.input_of(own);
    bytes += sizes.statistics_of(own);
    input_is_kept = attention;
  }
  return bytes;
}

BlockTensors block_tensors(const Sharding& plan, int rank, int64_t sequences) {
  BlockTensors b{.shape = tensor_shape_of(plan, rank, sequences),
                 .product = {},
                 .attention = sequence_memory(plan.sequence, attention_of(plan, sequences),
                                              plan.mesh.coord(rank, kUlysses), plan.mesh.coord(rank, kRing)),
                 .sizes = {},
                 .steps = {},
                 .shards_sequences = plan.sequence.ulysses * plan.sequence.ring > 1,
                 .has_dropout = plan.architecture.dropout > 0};
  b.product = product_memory(plan.tensor, b.shape);
  const int64_t tokens = sequences * b.shape.tokens, row = tokens * b.shape.element_bytes;
  const bool shards_tokens = plan.tensor.columns > 1 && plan.tensor.stream == StreamSharding::tokens;
  b.sizes = {.stream = b.product.stream,
            .row = row,
            .all_tokens_statistic = tokens * b.shape.sum_bytes,
            .shard_statistic = (shards_tokens ? tokens / plan.tensor.columns : tokens) * b.shape.sum_bytes,
            .attention = b.attention.saved_bytes};
  size_t linears = 0;
  for (const ColumnOperation& own : b.shape.block) {
    const Operation& operation = own.operation;
    const bool linear = operation.kind == OperationKind::linear, norm = operation.kind == OperationKind::norm;
    b.steps.push_back({.kind = operation.kind,
                       .to_stream = operation.to_stream,
                       .in = b.sizes.input_of(own),
                       .out = operation.to_stream || norm ? b.sizes.stream : row * own.out,
                       .product_out = operation.to_stream ? b.sizes.stream : row * own.product_out,
                       .statistics = b.sizes.statistics_of(own),
                       .product = linear ? b.product.linears[linears++] : ProductBytes()});
  }
  return b;
}

BlockMemory block_memory(const BlockTensors& b, const Ranges& recomputed) {
  BlockMemory memory;
  memory.kept = block_bytes(b.shape.block, b.sizes, recomputed);
  MemoryTrace forward;
  forward.take(b.sizes.stream);  // the input
  ForwardTrace trace(b, forward);
  for (size_t i = 0; i < b.steps.size(); ++i) {
    const RecomputedRange* range = range_of(recomputed, i);
    trace.run(i, range == nullptr, range != nullptr && range->begin == i);
  }
  trace.end();
  memory.forward = forward.most() - memory.kept;
  // W computes product after product and frees the tensors that each has read.
  MemoryTrace weights;
  for (size_t i = b.steps.size(); i-- > 0;) {
    if (b.steps[i].kind != OperationKind::linear) continue;
    weights.for_a_while(b.steps[i].product.for_weights);
    weights.free(b.steps[i].in + b.steps[i].product_out);
  }
  memory.weights = weights.most();
  for (const bool holds : {false, true}) {
    const BackwardTrace both(b, recomputed, false, holds), split(b, recomputed, true, holds);
    (holds ? memory.backward_held : memory.backward) = {.both = both.most(), .for_input = split.most()};
    // Bytes left after I, without the gradient for the previous block.
    memory.for_weights = memory.kept + split.now() - b.sizes.stream;
  }
  return memory;
}

}  // namespace orthant
