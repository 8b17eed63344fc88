#include "plan/microbatch_memory.h"

#include <algorithm>
#include <utility>

namespace orthant {
namespace {

// Returns the memory of a block that keeps its tensors in host memory. Its own passes have them on the device.
BlockMemory offloaded(BlockMemory block) {
  block.host = std::exchange(block.kept, 0);
  for (int64_t* peak : {&block.forward, &block.backward.both, &block.backward.for_input, &block.backward_held.both,
                        &block.backward_held.for_input}) {
    *peak += block.host;
  }
  return block;
}

}  // namespace

MicrobatchMemory microbatch_memory(const Sharding& plan, int rank, int64_t sequences) {
  const BlockTensors b = block_tensors(plan, rank, sequences);
  const int64_t stream = b.product.stream;
  MicrobatchMemory memory;
  memory.boundary = stream;
  // The input of the last norm and, unless the vocabulary is sharded, the gradient that the loss makes.
  memory.head = (plan.vocabulary.empty() ? 2 : 1) * stream + b.steps.front().statistics;
  memory.batch = 3 * sequences * b.shape.tokens * static_cast<int64_t>(sizeof(int64_t));
  memory.recompute = make_recomputation(plan.config);
  memory.keeping = memory.recomputing = block_memory(b, {});
  if (memory.recompute.is_on()) {
    memory.recomputing = block_memory(b, memory.recompute.ranges(block_operations(plan.architecture)));
  }
  if (plan.config.activation_checkpoint.offload) {
    memory.keeping = offloaded(memory.keeping), memory.recomputing = offloaded(memory.recomputing);
  }
  memory.embedding_forward = b.product.embedding.forward, memory.embedding_backward = b.product.embedding.backward;
  // The rows of tokens, and their sum with the vectors of positions.
  if (!plan.architecture.rotary()) memory.embedding_forward = std::max(memory.embedding_forward, 2 * stream);
  const bool is_changed = !plan.architecture.rotary() || plan.architecture.dropout > 0;
  if (!plan.vocabulary.empty() && is_changed) memory.embedding_kept = stream;
  memory.loss = b.product.loss;
  memory.vocabulary = vocabulary_memory(plan, rank, sequences);
  return memory;
}

MicrobatchBytes microbatch_bytes(const MicrobatchMemory& m, const Stage& stage, bool has_dropout,
                                 const std::vector<int64_t>& begun) {
  const int64_t layers = stage.layers.size();
  const bool has_head = stage.last && m.vocabulary.kept == 0;
  const bool holds = !has_head;  // the stage reads its gradient from a message, not from the loss
  const int64_t head = stage.last ? m.head : 0;
  int64_t blocks = 0, for_weights = 0;  // kept by all blocks, until I or B, and from I to W
  for (int64_t layer = stage.layers.begin; layer < stage.layers.end; ++layer) {
    blocks += m.block(layer).kept, for_weights += m.block(layer).for_weights;
  }
  MicrobatchBytes bytes;
  for (int64_t layer = stage.layers.begin; layer < stage.layers.end; ++layer) {
    bytes.host += m.block(layer).host, bytes.host_block = std::max(bytes.host_block, m.block(layer).host);
  }
  const bool is_empty = layers == 0 && !stage.first && !stage.last;  // passes its input on, and keeps nothing else
  bytes.sends_input = is_empty;
  bytes.kept = is_empty ? m.boundary : (stage.continues ? 0 : m.batch) + blocks + head;
  if (stage.first) bytes.kept += m.embedding_kept;
  bytes.for_weights = for_weights;
  bytes.input = stage.first ? 0 : m.boundary;
  bytes.output = stage.last ? 0 : m.boundary;
  bytes.softmax = m.vocabulary.kept, bytes.logits = m.vocabulary.logits;
  bytes.softmax_forward = m.vocabulary.output, bytes.softmax_backward = m.vocabulary.backward;
  bytes.embedding = m.vocabulary.embedding;
  bytes.lookup = m.vocabulary.lookup, bytes.lookup_backward = m.vocabulary.lookup_backward;
  // The blocks, from the last to the first. In the forward of a block, the blocks after it keep nothing yet. In its
  // backward, these have freed their tensors or left a part for W, and their reductions are in progress. The reductions
  // of a block count from the next block on.
  int64_t forward = layers > 0 ? 0 : is_empty ? m.batch : m.boundary;
  // A stage without layers returns a copy of the gradient that it reads.
  if (layers == 0) bytes.backward = bytes.backward_for_input = (is_empty ? 2 : 1) * m.boundary;
  int64_t freed = head, used = 0;  // bytes that the blocks after this one keep, and leave for W
  bytes.summands = stage.last && !begun.empty() ? begun.back() : 0;
  const int64_t first_held = holds && has_dropout ? m.boundary : 0;  // the message, unless W reads it
  for (int64_t layer = stage.layers.end; layer-- > stage.layers.begin;) {
    const BlockMemory& block = m.block(layer);
    const bool is_last = layer + 1 == stage.layers.end;
    const auto& [both, for_input] = is_last && holds ? block.backward_held : block.backward;
    forward = std::max(forward, block.forward + head - freed);
    bytes.backward = std::max(bytes.backward, both + (is_last || !holds ? 0 : m.boundary) - freed + bytes.summands);
    bytes.backward_for_input =
        std::max(bytes.backward_for_input, for_input + (is_last ? 0 : first_held) - freed + used);
    bytes.weights = std::max(bytes.weights, block.weights - used + bytes.summands);
    freed += block.kept, used += block.for_weights;
    if (!begun.empty()) bytes.summands += begun[static_cast<size_t>(layer + 1)];
  }
  bytes.forward = has_head ? std::max(m.loss, forward - head) : forward;
  if (stage.first && m.vocabulary.kept == 0) {
    // The embedding runs before the blocks in forward, and after them in backward. In backward the message that the
    // stage has read is still held. In I without dropout, it is one of the tensors left for W.
    bytes.forward = std::max(bytes.forward, m.embedding_forward + m.batch - bytes.kept);
    const int64_t last = m.boundary + m.embedding_backward - head;
    bytes.backward = std::max(bytes.backward, last + (holds ? m.boundary : 0) - blocks + bytes.summands);
    bytes.backward_for_input = std::max(bytes.backward_for_input, last + first_held + for_weights - blocks);
  }
  if (stage.first && !begun.empty()) bytes.summands += begun.front();
  return bytes;
}

}  // namespace orthant
