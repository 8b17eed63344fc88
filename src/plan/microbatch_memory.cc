// Follows the tensors of a block through forward, B, I and W, in the order in which the model allocates and frees them.
// Each peak is a maximum over these events.
#include "plan/microbatch_memory.h"

#include <algorithm>
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

// Sizes in bytes of the tensors of one block for a microbatch.
struct Block {
  Block(const Plan& plan, int rank, int64_t sequences)
      : shape(tensor_shape_of(plan, rank, sequences)),
        product(product_memory(plan.tensor, shape)),
        attention(sequence_memory(plan.sequence, attention_of(plan, sequences), plan.mesh.coord(rank, kUlysses),
                                  plan.mesh.coord(rank, kRing))) {
    const int64_t tokens = sequences * shape.tokens, row = tokens * shape.element_bytes;
    const bool tokens_cut = plan.tensor.columns > 1 && plan.tensor.stream == StreamSharding::tokens;
    stream = product.stream;
    statistic = (tokens_cut ? tokens / plan.tensor.columns : tokens) * shape.sum_bytes;
    qkv = row * shape.qkv_rows;
    attended = row * (shape.attention / plan.tensor.columns);
    gate_up = row * shape.gate_up_rows;
    mixed = gate_up / 2;
    cut = plan.sequence.ulysses * plan.sequence.ring > 1;
    recomputes = plan.config.activation_checkpoint.mode == "full";
    drops = plan.architecture.dropout > 0;
  }
  int64_t kept() const { return block_bytes(stream, gate_up, statistic, attention.saved_bytes); }

  TensorShape shape;
  ProductMemory product;
  SequenceMemory attention;
  int64_t stream, statistic;          // the residual stream; one number per token
  int64_t qkv, attended;              // attention's input and output
  int64_t gate_up, mixed;             // the MLP's gate and up; their product
  bool cut;                           // sequences are sharded over ranks
  bool recomputes, drops;
};

// Follows the backward of a block, which begins with the block's kept tensors and the gradient of its output. `splits`:
// inputs of products and gradients of their outputs stay for W. `holds`: the caller holds the output's gradient too.
MemoryTrace backward(const Block& b, bool splits, bool holds) {
  MemoryTrace held;
  const bool gradient_stays = holds || b.recomputes || (splits && !b.drops);
  const auto to_weights = [&](int64_t bytes) {
    if (!splits) held.free(bytes);
  };
  const auto multiply = [&](const ProductBytes& product) {
    held.for_a_while(splits ? product.for_input : product.backward);
  };
  held.take(b.stream);
  if (b.recomputes) {  // the block's output, held to the end, counts in place of its input, which is kept already
    held.for_a_while(b.kept() + b.product.down.forward);
    held.take(b.kept());
  }
  if (b.drops) held.take(b.stream);
  multiply(b.product.down);
  held.take(b.mixed);
  to_weights(b.mixed + (b.drops ? b.stream : 0));
  held.take(b.gate_up);  // gradient of gate and up; then the gradient of `mixed` and the kept gate and up are freed
  held.free(b.mixed + b.gate_up);
  multiply(b.product.gate_up);
  held.take(b.stream);
  to_weights(b.gate_up + b.stream);
  // Gradient of the norm's input. The gradients of the norm's output and of the block's output are freed, and so is the
  // kept input of the norm.
  held.take(b.stream);
  held.free(2 * b.stream + b.statistic + (gradient_stays ? 0 : b.stream));
  if (b.drops) held.take(b.stream);
  multiply(b.product.attended);
  held.take(b.attended);
  if (b.drops) to_weights(b.stream);
  // The kernel returns gradients of queries, keys and values per query head. At first they exist as returned and as
  // contiguous copies, later as separate tensors and joined into one. If sequences are sharded,
  // attention.temporary_bytes includes the kernel's results.
  const int64_t left = b.cut ? 0 : 6 * b.attended;
  held.for_a_while(std::max(2 * b.qkv + b.attended, left) + b.attention.temporary_bytes);
  held.take(b.qkv);
  held.free(b.attended + b.attention.saved_bytes - (splits ? b.attended : 0));
  multiply(b.product.qkv);
  held.take(b.stream);
  to_weights(b.qkv + b.stream);
  held.take(b.stream);  // gradient of the block's input, which the previous block reads
  held.free(2 * b.stream + b.statistic + (splits && !b.drops ? 0 : b.stream));
  if (b.recomputes) held.free(b.stream);
  if (gradient_stays && !(splits && !b.drops)) held.free(b.stream);
  return held;
}

// Returns the peak of a block's forward in addition to the bytes kept at its end. Its local tensors live until it ends.
int64_t forward(const Block& b) {
  const int64_t down = std::max(b.product.down.forward, (b.drops ? 3 : 2) * b.stream);
  const int64_t gate_up = std::max(b.product.gate_up.forward, b.gate_up + b.mixed);
  if (!b.recomputes) return b.stream + std::max(down, gate_up - b.gate_up - b.mixed);
  return 4 * b.stream + b.attended + std::max(b.mixed + down, gate_up);
}

// Returns the peak of W in addition to the bytes that the block has left for it. W computes product after product and
// frees the tensors that each has read.
int64_t weight_gradients(const Block& b) {
  MemoryTrace held;
  for (const auto& [product, read] : {std::pair{b.product.down, b.mixed + b.stream},
                                      {b.product.gate_up, b.gate_up + b.stream},
                                      {b.product.attended, b.attended + b.stream},
                                      {b.product.qkv, b.qkv + b.stream}}) {
    held.for_a_while(product.for_weights);
    held.free(read);
  }
  return held.most();
}

}  // namespace

int64_t block_bytes(int64_t stream, int64_t gate_up, int64_t statistic, int64_t attention) {
  // Inputs and outputs of two norms, and their statistics; gate and up, and their product.
  return attention + 4 * stream + gate_up + gate_up / 2 + 2 * statistic;
}

MicrobatchMemory microbatch_memory(const Plan& plan, int rank, int64_t sequences) {
  const Block b(plan, rank, sequences);
  MicrobatchMemory memory;
  memory.boundary = b.stream;
  memory.block = b.recomputes ? b.stream : b.kept();
  // The input of the last norm and, unless the vocabulary is sharded, the gradient that the loss makes.
  memory.head = (plan.vocabulary.empty() ? 2 : 1) * b.stream + b.statistic;
  memory.batch = 3 * sequences * b.shape.tokens * static_cast<int64_t>(sizeof(int64_t));
  memory.forward = forward(b);
  memory.embedding_forward = b.product.embedding.forward, memory.embedding_backward = b.product.embedding.backward;
  memory.loss = b.product.loss;
  memory.weights = weight_gradients(b);
  memory.vocabulary = vocabulary_memory(plan, rank, sequences);
  for (const bool holds : {false, true}) {
    const MemoryTrace whole = backward(b, false, holds), split = backward(b, true, holds);
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
