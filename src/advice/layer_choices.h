// Compares the ways to distribute one layer over the plan's ranks, for the user's model and batch: bytes that a rank
// sends, holds and keeps for backward. The table follows Fang and Zhao 2024, "USP" (arXiv 2405.07719), tables 2 and 3.
// It has bytes per rank where the paper has orders of magnitude.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plan/plan.h"

namespace orthant {

/// One way to distribute a layer. Numbers are for one layer on the busiest rank. It recomputes if any layer of the run
/// recomputes. Bytes sent are per step, forward and backward; bytes kept are for the rank's largest microbatch.
struct LayerChoice {
  std::string name;              // "data 2, ulysses 2 x ring 2"
  SequencePlan sequence;         // how this way shards sequences
  int data = 1;                  // data ranks; 0: this way shards neither batch nor sequences
  int64_t parameter_bytes = 0;   // sent: parameters and their gradients
  int64_t activation_bytes = 0;  // sent: activations and their gradients
  int64_t ulysses_bytes = 0, ring_bytes = 0;  // parts of activation_bytes that are sent along these axes
  int64_t state_bytes = 0;  // held: parameters, gradients and optimizer state
  int64_t saved_bytes = 0;  // activations kept from forward to backward
  bool is_comparable = true;  // false: another table plans this way, or the run cannot take it
  std::string remark;         // why it is not comparable
  bool chosen = false;
  double seconds = 0;  // attention_seconds(), if the links are known

  bool shards_batch_or_sequences() const { return data > 0; }
  int64_t sent_bytes() const { return parameter_bytes + activation_bytes; }
};

/// Returns the ways to compare, the plan's own included. Data parallelism, ZeRO, tensor and pipeline parallelism each
/// use all ranks. Every ulysses x ring uses the ranks that the plan gives to sequences, or all ranks if it shards none.
/// Each ring appears with ring self-attention too, unless its score rows exceed kMostElements. Empty for one rank, and
/// for Linformer, which computes a different function. Also empty on tensor meshes and pipelines, which
/// tensor_choices() and schedule_choices() compare.
std::vector<LayerChoice> layer_choices(const Plan& plan);

/// Returns the choice that sends fewest bytes, among those that are comparable; of equals, the one that keeps fewest.
const LayerChoice& sends_least(const std::vector<LayerChoice>& choices);
/// Returns the choice that holds and keeps fewest bytes, among the same; of equals, the one that sends fewest.
const LayerChoice& holds_least(const std::vector<LayerChoice>& choices);
/// Returns the choice with the shortest attention_seconds(), among the same. The estimate cannot distinguish times
/// within 5 % of the shortest; of those, the choice that sends fewest bytes is returned.
const LayerChoice& fastest(const std::vector<LayerChoice>& choices);

/// Returns a table of the choices for people with its conclusion, or why there are none. Empty for one rank.
std::string explain_layer_choices(const Plan& plan);

}  // namespace orthant
