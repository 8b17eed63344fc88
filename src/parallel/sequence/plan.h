// Sequence parallelism, pure half: what one layer's attention sends and holds on each rank, for every way to shard
// sequences over ulysses x ring ranks (Fang and Zhao 2024, "USP", arXiv 2405.07719). All other operations of a layer
// work token by token and send nothing. Each method states its byte formulas in its header: ulysses/run.h,
// ring_attention/run.h, ring_self_attention/run.h and linformer/run.h.
#pragma once

#include "mesh/axes.h"
#include "mesh/collective.h"
#include "parallel/sequence/placement_plan.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace orthant {

/// The tensors that travel round the ring, or are summed over it.
enum class SequenceMethod {
  ring_attention,       // keys and values in one ring
  ring_self_attention,  // keys, then values: each rank keeps full rows of scores
  linformer,            // summaries of all tokens, which replace keys and values; an all-reduce
};

/// The method under its name in a run file. LogicError for an unknown name, because the table of keys refuses those.
SequenceMethod sequence_method_of(std::string_view name);

struct SequencePlan {
  int ulysses = 1, ring = 1;
  int window = 0;  // ring attention: ranks in one window of the double ring; 0: a single ring
  SequencePlacement placement = SequencePlacement::zigzag;
  SequenceMethod method = SequenceMethod::ring_attention;
  bool all_reduce = false;     // ring self-attention: backward all-reduces dK and dV, as in the paper
  int64_t summary_length = 0;  // Linformer: summary rows of a sequence

  bool parallel() const { return ulysses * ring > 1; }
};

/// Sizes of one layer's attention on one microbatch, before heads or sequences are sharded.
struct SequenceAttention {
  int64_t sequences = 0, seq_len = 0;
  int64_t heads = 0, key_heads = 0, head_dim = 0;
  int element_bytes = 4;
  bool causal = true;
  bool capped = false;  // the scores have a cap, and the kernel stores some of them at a time
  bool on_gpu = false;
  /// Bytes of one element of a partial result over blocks (output, log-sum-exp, gradients): float32, or float64 where
  /// the elements are.
  int sum_bytes() const { return element_bytes == 8 ? 8 : 4; }
};

/// Messages that one rank sends for one layer and microbatch, in one forward and in one backward.
struct SequenceTraffic {
  std::vector<Messages> forward, backward;

  auto operator<=>(const SequenceTraffic&) const = default;
};
/// u: the rank's position in its Ulysses group; r: its position in its ring.
SequenceTraffic sequence_traffic(const SequencePlan& plan, const SequenceAttention& attention, int u, int r);

/// Bytes of one layer's attention on that rank: kept from forward to backward, and the peak of temporary memory in
/// addition to the kept tensors and to the memory that backward needs on one device.
struct SequenceMemory {
  int64_t saved_bytes = 0, temporary_bytes = 0;
};
SequenceMemory sequence_memory(const SequencePlan& plan, const SequenceAttention& attention, int u, int r);

/// Upper bound of the elements in the rows of scores that a rank keeps for backward; 0 for methods that keep none. They
/// grow with the square of the sequence length and may exceed 64 bits while all other counts are small. Call
/// sequence_memory() only where this number is small enough to count.
double max_saved_score_elements(const SequencePlan& plan, const SequenceAttention& attention);

}  // namespace orthant
