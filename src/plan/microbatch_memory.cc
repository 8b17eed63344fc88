// Follows the tensors of a block through forward, B, I and W, in the order in which the model allocates and frees them.
// Each peak is a maximum over these events.
#include "plan/microbatch_memory.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "parallel/tensor/memory_plan.h"

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

// One operation of the block, with the bytes of its tensors on this rank.
struct BlockStep {
  OperationKind kind;
  bool to_stream, output_is_temporary;
  int64_t in, out;
  int64_t statistics = 0;     // kept for backward
  ProductBytes product = {};  // of a linear operation
};

// Sizes in bytes of the tensors of one block for a microbatch.
struct Block {
  Block(const Sharding& plan, int rank, int64_t sequences)
      : shape(tensor_shape_of(plan, rank, sequences)),
        product(product_memory(plan.tensor, shape)),
        attention(sequence_memory(plan.sequence, attention_of(plan, sequences), plan.mesh.coord(rank, kUlysses),
                                  plan.mesh.coord(rank, kRing))) {
    const int64_t tokens = sequences * shape.tokens, row = tokens * shape.element_bytes;
    const bool tokens_cut = plan.tensor.columns > 1 && plan.tensor.stream == StreamSharding::tokens;
    stream = product.stream;
    shard_statistic = (tokens_cut ? tokens / plan.tensor.columns : tokens) * shape.sum_bytes;
    const BlockSizes sizes{.stream = stream,
                           .row = row,
                           .all_tokens_statistic = tokens * shape.sum_bytes,
                           .shard_statistic = shard_statistic,
                           .attention = attention.saved_bytes};
    kept = block_bytes(shape.block, sizes);
    size_t linears = 0;
    for (const ColumnOperation& own : shape.block) {
      const Operation& operation = own.operation;
      const bool linear = operation.kind == OperationKind::linear, norm = operation.kind == OperationKind::norm;
      steps.push_back({.kind = operation.kind,
                       .to_stream = operation.to_stream,
                       .output_is_temporary = operation.output_is_temporary,
                       .in = operation.reads_stream() ? stream : row * own.in,
                       .out = operation.to_stream || norm ? stream : row * own.out,
                       .statistics = sizes.statistics_of(own),
                       .product = linear ? product.linears[linears++] : ProductBytes()});
    }
    cut = plan.sequence.ulysses * plan.sequence.ring > 1;
    recomputes = plan.config.activation_checkpoint.mode == "full";
    drops = plan.architecture.dropout > 0;
  }

  TensorShape shape;
  ProductMemory product;
  SequenceMemory attention;
  std::vector<BlockStep> steps;
  int64_t stream, shard_statistic;  // as in BlockSizes
  int64_t kept;               // from forward to backward, without recomputation
  bool cut;                   // sequences are sharded over ranks
  bool recomputes, drops;
};

// Follows the backward of a block, which begins with the block's kept tensors and the gradient of its output. `splits`:
// inputs of products and gradients of their outputs stay for W. `holds`: the caller holds the output's gradient too.
class BlockBackward {
 public:
  BlockBackward(const Block& b, bool splits, bool holds) : b_(b), splits_(splits), holds_(holds) {
    held_.take(b.stream);
    if (b.recomputes) {  // the block's output, held to the end, counts in place of its input, which is kept already
      held_.for_a_while(b.kept + b.steps.back().product.forward);
      held_.take(b.kept);
    }
    for (size_t i = b.steps.size(); i-- > 0;) {
      switch (b.steps[i].kind) {
        case OperationKind::norm:
          norm(b.steps[i]);
          break;
        case OperationKind::linear:
          linear(b.steps[i], i > 0 && b.steps[i - 1].kind == OperationKind::attention);
          break;
        case OperationKind::attention:
          attention(b.steps[i]);
          break;
        case OperationKind::local:
          held_.take(b.steps[i].in);  // then the gradient of the output and what was kept are freed
          held_.free(b.steps[i].out + b.steps[i].in + b.steps[i].statistics);
          break;
      }
    }
    if (b.recomputes) held_.free(b.stream);
    if ((holds || b.recomputes) && !weights_read_stream_gradient()) held_.free(b.stream);
  }

  int64_t most() const { return held_.most(); }
  int64_t now() const { return held_.now(); }

 private:
  // Without dropout, the gradient of the stream is that of a product's output, which W reads.
  bool weights_read_stream_gradient() const { return splits_ && !b_.drops; }
  void free_unless_for_weights(int64_t bytes) {
    if (!splits_) held_.free(bytes);
  }

  void linear(const BlockStep& step, bool input_belongs_to_attention) {
    if (step.to_stream && b_.drops) held_.take(b_.stream);  // gradient of the product, after that of dropout
    held_.for_a_while(splits_ ? step.product.for_input : step.product.backward);
    held_.take(step.in);
    const int64_t kept_input = input_belongs_to_attention ? 0 : step.in;
    const int64_t gradient = !step.to_stream ? step.out : b_.drops ? b_.stream : 0;
    free_unless_for_weights(kept_input + gradient);
  }
  // Takes the gradient of the norm's input. Frees the gradients of its output and of the stream after it, and its kept
  // input. The gradient that the block was given may belong to somebody else.
  void norm(const BlockStep& step) {
    const bool stays = weights_read_stream_gradient() || (given_ && (holds_ || b_.recomputes));
    given_ = false;
    held_.take(step.in);
    held_.free(step.out + step.in + step.statistics + (stays ? 0 : b_.stream));
  }
  // The kernel returns gradients of queries, keys and values per query head. At first they exist as returned and as
  // contiguous copies, later as separate tensors and joined into one. If sequences are sharded,
  // attention.temporary_bytes includes the kernel's results.
  void attention(const BlockStep& step) {
    const int64_t left = b_.cut ? 0 : 6 * step.out;
    held_.for_a_while(std::max(2 * step.in + step.out, left) + b_.attention.temporary_bytes);
    held_.take(step.in);
    held_.free(step.out + b_.attention.saved_bytes - (splits_ ? step.out : 0));
  }

  const Block& b_;
  bool splits_, holds_;
  bool given_ = true;  // no norm has freed the gradient of the block's output yet
  MemoryTrace held_;
};

// Returns the peak of a block's forward in addition to the bytes kept at its end. It comes after the last norm, when
// most tensors exist. Outputs that are not temporary live until the block ends. Without recomputation, backward keeps
// all of them except the product that is added to the stream.
int64_t forward(const Block& b) {
  size_t after_norms = b.steps.size();
  while (b.steps[after_norms - 1].kind != OperationKind::norm) --after_norms;
  MemoryTrace held;
  for (size_t i = 0; i < after_norms; ++i) {
    const BlockStep& step = b.steps[i];
    if (b.recomputes ? !step.output_is_temporary : step.to_stream) held.take(step.out);
    // The sum of the stream and the product before the norm. The first norm reads the block's input itself.
    if (b.recomputes && step.kind == OperationKind::norm && i > 0) held.take(b.stream);
  }
  int64_t kept = 0, temporary = 0;
  for (size_t i = after_norms; i < b.steps.size(); ++i) {
    const BlockStep& step = b.steps[i];
    const int64_t additions = step.to_stream ? (b.drops ? 3 : 2) * b.stream : 0;
    held.for_a_while(std::max(step.product.forward, additions));
    if (step.to_stream) break;
    held.take(step.out);
    if (!b.recomputes) kept += step.out;
    held.free(std::exchange(temporary, b.recomputes && step.output_is_temporary ? step.out : 0));
  }
  return held.most() - kept;
}

// Returns the peak of W in addition to the bytes that the block has left for it. W computes product after product and
// frees the tensors that each has read.
int64_t weight_gradients(const Block& b) {
  MemoryTrace held;
  for (size_t i = b.steps.size(); i-- > 0;) {
    const BlockStep& step = b.steps[i];
    if (step.kind != OperationKind::linear) continue;
    held.for_a_while(step.product.for_weights);
    held.free(step.in + step.out);
  }
  return held.most();
}

}  // namespace

int64_t block_bytes(const std::vector<ColumnOperation>& block, const BlockSizes& sizes) {
  int64_t bytes = 0;
  bool input_is_kept = false;  // attention keeps its output, which the next product reads
  for (const ColumnOperation& own : block) {
    const Operation& operation = own.operation;
    const bool attention = operation.kind == OperationKind::attention;
    if (attention) bytes += sizes.attention;
    const int64_t input = operation.reads_stream() ? sizes.stream : sizes.row * own.in;
    if (operation.keeps_input() && !input_is_kept) bytes += input;
    bytes += sizes.statistics_of(own);
    input_is_kept = attention;
  }
  return bytes;
}

MicrobatchMemory microbatch_memory(const Sharding& plan, int rank, int64_t sequences) {
  const Block b(plan, rank, sequences);
  MicrobatchMemory memory;
  memory.boundary = b.stream;
  memory.block = b.recomputes ? b.stream : b.kept;
  // The input of the last norm and, unless the vocabulary is sharded, the gradient that the loss makes.
  memory.head = (plan.vocabulary.empty() ? 2 : 1) * b.stream + b.steps.front().statistics;
  memory.batch = 3 * sequences * b.shape.tokens * static_cast<int64_t>(sizeof(int64_t));
  memory.forward = forward(b);
  memory.embedding_forward = b.product.embedding.forward, memory.embedding_backward = b.product.embedding.backward;
  memory.loss = b.product.loss;
  memory.weights = weight_gradients(b);
  memory.vocabulary = vocabulary_memory(plan, rank, sequences);
  for (const bool holds : {false, true}) {
    const BlockBackward whole(b, false, holds), split(b, true, holds);
    (holds ? memory.backward_held : memory.backward) = {.whole = whole.most(), .for_input = split.most()};
    // Bytes left after I, without the gradient for the previous block.
    memory.for_weights = memory.block + split.now() - b.stream;
  }
  return memory;
}

MicrobatchBytes microbatch_bytes(const MicrobatchMemory& m, const Stage& stage, bool drops,
                                 const std::vector<int64_t>& begun) {
  const int64_t layers = stage.layers.size();
  const bool has_head = stage.last && m.vocabulary.kept == 0;
  const bool holds = !has_head;  // the stage reads its gradient from a message, not from the loss
  const int64_t head = stage.last ? m.head : 0, below = layers - 1;
  MicrobatchBytes bytes;
  const bool hands_on = layers == 0 && !stage.first && !stage.last;  // passes its input on, and keeps nothing else
  bytes.kept = hands_on ? m.boundary : m.batch + layers * m.block + head;
  bytes.for_weights = layers * m.for_weights;
  bytes.input = stage.first ? 0 : m.boundary;
  bytes.output = stage.last ? 0 : m.boundary;
  bytes.forward = layers > 0 ? m.forward : hands_on ? m.batch : m.boundary;
  if (has_head) bytes.forward = std::max(m.loss, bytes.forward - head);
  bytes.softmax = m.vocabulary.kept, bytes.logits = m.vocabulary.logits;
  bytes.softmax_forward = m.vocabulary.output, bytes.softmax_backward = m.vocabulary.backward;
  bytes.lookup = m.vocabulary.lookup, bytes.lookup_backward = m.vocabulary.lookup_backward;
  bytes.backward = bytes.backward_for_input = m.boundary;
  bytes.weights = layers > 0 ? m.weights : 0;
  // I has its peak in the first block that runs, or in the last one, when the others have left their tensors for W.
  const int64_t first_held = holds && drops ? m.boundary : 0;
  if (layers > 0) {
    const auto& [whole, for_input] = holds ? m.backward_held : m.backward;
    bytes.backward = whole - head;
    bytes.backward_for_input =
        std::max(for_input, m.backward.for_input + below * (m.for_weights - m.block) + first_held) - head;
  }
  // After each block less is kept and more reductions are in progress. The reductions that a block starts count from
  // the next block on.
  int64_t freed = head, used = 0;
  bytes.summands = stage.last && !begun.empty() ? begun.back() : 0;
  for (int64_t layer = stage.layers.end; layer-- > stage.layers.begin && !begun.empty();) {
    bytes.backward = std::max(bytes.backward, m.backward.whole - freed + bytes.summands);
    bytes.weights = std::max(bytes.weights, m.weights + bytes.summands - used);
    freed += m.block, used += m.for_weights;
    bytes.summands += begun[static_cast<size_t>(layer + 1)];
  }
  if (stage.first && m.vocabulary.kept == 0) {
    // The embedding runs before the blocks in forward, and after them in backward. In backward the message that the
    // stage has read is still held. In I without dropout, it is one of the tensors left for W.
    bytes.forward = std::max(bytes.forward, m.embedding_forward + m.batch - bytes.kept);
    const int64_t last = m.boundary + m.embedding_backward - head;
    bytes.backward = std::max(bytes.backward, last + (holds ? m.boundary : 0) - layers * m.block + bytes.summands);
    bytes.backward_for_input =
        std::max(bytes.backward_for_input, last + first_held + layers * (m.for_weights - m.block));
  }
  if (stage.first && !begun.empty()) bytes.summands += begun.front();
  return bytes;
}

}  // namespace orthant
