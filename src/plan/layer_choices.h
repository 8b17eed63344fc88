// The ways to spread one layer over the plan's ranks, side by side: what a rank sends for it, holds of it and keeps for
// backward, for the user's own model and batch. Fang and Zhao 2024, "USP" (arXiv 2405.07719), tables 2 and 3, with
// bytes a rank in place of the paper's orders of magnitude.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plan/plan.h"

namespace orthant {

/// One layer, the first, of the busiest rank. Bytes sent are those of a step, both directions; kept are those of
/// its largest microbatch.
struct LayerChoice {
  std::string name;              // "data 2, ulysses 2 x ring 2"
  SequencePlan sequence;         // where the ways differ by how sequences are cut
  int data = 1;                  // 0: by neither sequences nor tokens
  int64_t parameter_bytes = 0;   // sent: parameters and their gradients
  int64_t activation_bytes = 0;  // sent: activations and their gradients; of them along each axis:
  int64_t ulysses_bytes = 0, ring_bytes = 0;
  int64_t state_bytes = 0;  // held: parameters, gradients, optimizer
  int64_t kept_bytes = 0;   // activations, from forward to backward
  std::string refusal;      // why it is not one to take; empty if it is
  bool chosen = false;
  double seconds = 0;  // attention_seconds(), where the links are known

  bool cuts_tokens() const { return data > 0; }
  int64_t sent_bytes() const { return parameter_bytes + activation_bytes; }
};

/// Data parallelism, every ulysses x ring of the ranks that the plan gives to sequences (of all ranks, if it cuts
/// none), ring self-attention unless its rows of scores are beyond counting, ZeRO, tensor and pipeline parallelism,
/// each over all ranks; the plan's own among them. Empty for one rank; with Linformer, which computes something else
/// than all of these; and on tensor meshes and pipelines, which tensor_choices() and schedule_choices() compare.
std::vector<LayerChoice> layer_choices(const Plan& plan);

/// Of those that the run can take, the one that sends least; of equals, the one that keeps least.
const LayerChoice& sends_least(const std::vector<LayerChoice>& choices);
const LayerChoice& holds_least(const std::vector<LayerChoice>& choices);
/// By attention_seconds(), which does not tell apart what is within 5 %: of those, the one that sends least.
const LayerChoice& fastest(const std::vector<LayerChoice>& choices);

/// A table of them for people, and what follows from it; or why there are none. Empty for one rank.
std::string explain_layer_choices(const Plan& plan);

}  // namespace orthant
