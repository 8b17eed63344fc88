// Plan: everything about a run that can be known before its first process starts, as one value. It is identical on all
// ranks, can be printed, and is saved with the run. The runtime reads one rank's row of it.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "base/exact_sum.h"
#include "mesh/rank_classes.h"
#include "plan/placement.h"
#include "plan/step_time.h"
#include "schedule/row_memory.h"
#include "schedule/simulate.h"

namespace orthant {

/// Bytes of one rank's tensors, as the allocator will count them.
struct MemoryBytes {
  int64_t parameters = 0;   // master weights, and working copies if their dtype differs
  int64_t gradients = 0;
  int64_t optimizer = 0;
  int64_t activations = 0;  // kept from forward to backward by all live microbatches, their tokens included
  int64_t working = 0;      // peak of messages and temporaries on top of that; rotary tables; step statistics
  std::optional<Action> peak = {};  // the Action that reaches the peak; none: the update after the row
  HeldBytes at_peak = {};           // what the row holds at its own peak
  int64_t host = 0;         // offloaded to host memory, and not in total()
  int64_t host_copies = 0;  // copied to and from the host in a step

  int64_t total() const { return parameters + gradients + optimizer + activations + working; }
  bool operator==(const MemoryBytes&) const = default;
};

/// Messages that planning tells apart.
enum class CommunicationKind {
  stage_outputs,
  stage_gradients,      // gradients of the inputs of stages
  gradients,            // reductions of buckets
  gradients_of_copies,  // sums of buckets over the copies of sharded states
  weights,              // gathers of buckets
  other
};

/// Messages of one kind that the ranks send in a step.
struct CommunicationEntry {
  std::string what;  // "gradients"
  CommunicationKind kind = CommunicationKind::other;
  std::string collective;  // "all_reduce"
  std::string axis;
  int64_t buckets = 0;  // buckets whose messages are added up; 0 if the entry is not about buckets
  std::vector<int64_t> calls = {};  // per step, by class of ranks: see Plan::classes
  std::vector<int64_t> bytes = {}, received = {};  // sent, and received, per step, by class of ranks
};

/// The version of a plan's JSON form, which a run writes to plan.json. docs/plan-json.md describes it.
inline constexpr int kPlanJsonVersion = 3;

/// A run on its mesh, with its costs. Planning is a chain of pure steps: Sharding, Pipeline, ParameterPlacement, Plan.
/// Each step takes the value of the step before it and adds what it computes.
struct Plan : ParameterPlacement {
  Timeline timeline;  // in seconds if the hardware is known; else from FLOPs, in mean forwards of a microbatch
  /// Time from the beginning of a row to that of the next one, in the timeline's unit: its makespan, or less if
  /// consecutive steps overlap (post-validation).
  double row_interval = 0;
  std::optional<StepTime> step_time;  // if the hardware is known
  /// Ranks that are planned once: they have the same pipeline rank, number of sequences, memory and messages.
  RankClasses classes;
  std::vector<MemoryBytes> memory;  // by class
  std::vector<CommunicationEntry> communication;

  /// Length of a step in the timeline's unit: the seconds of the whole step, or row_interval without hardware.
  double step_length() const { return step_time ? step_time->seconds : row_interval; }
  /// The fraction of row_interval in which the ranks do not compute.
  double bubble() const;
  const MemoryBytes& memory_of(int rank) const { return memory[static_cast<size_t>(classes.of(rank))]; }
  /// Calls of an entry of `communication` by a rank, and bytes that it sends and receives in them.
  int64_t calls_of(const CommunicationEntry& entry, int rank) const;
  int64_t bytes_of(const CommunicationEntry& entry, int rank) const;
  int64_t received_by(const CommunicationEntry& entry, int rank) const;
  /// Bytes that a rank of each class sends per step: in all messages, or in those of some kinds.
  std::vector<int64_t> communication_bytes(std::initializer_list<CommunicationKind> kinds = {}) const;
  /// Bytes that a rank of each class receives per step in all messages.
  std::vector<int64_t> received_bytes() const;
  /// The largest of communication_bytes().
  int64_t largest_communication_bytes(std::initializer_list<CommunicationKind> kinds = {}) const;
  /// The rank that needs most memory, the lowest of several, and its bytes.
  int worst_rank() const;
  int64_t largest_memory_bytes() const;
};

/// The plan of generation: the ranks of one replica continue a text, and each holds all of its tokens, because they
/// compute one token at a time. Columns that shard the residual stream by tokens replicate it instead.
Plan make_generation_plan(Plan plan);

/// Plans the run; a pure function of config and facts. tensor_parallel_kind must not be "auto", which advised_plan()
/// resolves. Throws ConfigError if the run is impossible.
Plan make_plan(const Config& config, const RunFacts& facts);
/// Returns the same plan if its step takes less than `seconds`, or else nothing, without planning memory and messages.
/// Requires facts.hardware unless `seconds` is infinite.
std::optional<Plan> make_plan_below(const Config& config, const RunFacts& facts, double seconds);

/// The step time of the run's plan, whose memory and messages are not counted. Requires facts.hardware. Throws
/// ConfigError if the run is impossible.
StepTime plan_step_time(const Config& config, const RunFacts& facts);

/// Checks the laws that make_plan() checks, without planning: the cost does not grow with the ranks. Throws
/// ConfigError.
void check_plan(const Config& config, const RunFacts& facts);

/// Elements of the float64 vector that all ranks reduce after each step: loss, stop signals, the squares of the
/// gradients as ExactSum::numbers(), and the memory peak in bytes. All are summed, except the last kMaxima: of the
/// peaks, the largest is the result. The size does not depend on the number of ranks.
struct StepSignals {
  static constexpr int kLoss = 0, kTerminate = 1, kInterrupt = 2, kSquares = 3;
  static constexpr int kPeakBytes = kSquares + ExactSum::kNumbers;
  static constexpr int64_t kMaxima = 1, kElements = kPeakBytes + kMaxima;
  static constexpr auto kBytes = kElements * static_cast<int64_t>(sizeof(double));
};

}  // namespace orthant
