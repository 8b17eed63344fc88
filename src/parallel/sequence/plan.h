// Sequence parallelism, the plan: what a layer's attention sends and keeps on each rank, for each way of cutting
// sequences over ulysses x ring ranks (Fang and Zhao 2024, "USP", arXiv 2405.07719). Everything else in a layer is
// token by token and sends nothing. The formulas stand beside what they count: in the heads of ulysses/,
// ring_attention/, ring_self_attention/ and linformer/.
#pragma once

#include "mesh/axes.h"
#include "parallel/sequence/placement_plan.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace orthant {

/// What goes round the ring, or is added up over it.
enum class SequenceMethod {
  ring_attention,       // keys and values
  ring_self_attention,  // keys, then values: rows of scores are kept
  linformer,            // summaries of all tokens, in place of keys and values
};

/// As the run file writes it; LogicError for another name, since the table of keys has refused it.
SequenceMethod sequence_method_of(std::string_view name);

struct SequencePlan {
  int ulysses = 1, ring = 1;
  int window = 0;  // ring attention: ranks of a window of the double ring; 0: one ring
  SequencePlacement placement = SequencePlacement::zigzag;
  SequenceMethod method = SequenceMethod::ring_attention;
  bool all_reduce = false;     // ring self-attention: the paper's form of its backward
  int64_t summary_length = 0;  // Linformer: summary rows of a sequence

  bool parallel() const { return ulysses * ring > 1; }
};

/// One layer's attention on a microbatch.
struct SequenceAttention {
  int64_t sequences = 0, seq_len = 0;
  int64_t heads = 0, key_heads = 0, head_dim = 0;
  int element_bytes = 4;
  /// Of sums over blocks: output, log-sum-exp and gradients while they are not complete.
  int sum_bytes() const { return element_bytes == 8 ? 8 : 4; }
};

/// Messages of one kind that a rank sends: how many calls of the collective, and their bytes.
struct SequenceMessages {
  std::string what, collective, axis;
  int64_t calls = 0, bytes = 0;
};
/// Of rank u of its Ulysses group and r of its ring, once through forward, and through backward.
struct SequenceTraffic {
  std::vector<SequenceMessages> forward, backward;
};
SequenceTraffic sequence_traffic(const SequencePlan& plan, const SequenceAttention& attention, int u, int r);

/// What attention holds on that rank: for backward, and at most beside that.
struct SequenceMemory {
  int64_t kept_bytes = 0, working_bytes = 0;
};
SequenceMemory sequence_memory(const SequencePlan& plan, const SequenceAttention& attention, int u, int r);

/// Elements of the rows of scores that a rank keeps for backward, from above; 0 where it keeps none. They grow with the
/// square of the sequence, beyond what 64 bits count while all else is small: where they do, ask for no memory.
double kept_scores(const SequencePlan& plan, const SequenceAttention& attention);

}  // namespace orthant
