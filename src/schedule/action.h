// Action: one unit of work of a rank in a training step: (kind, stage, microbatch). The text form is that of PyTorch's
// pipelining: 2F5 is the forward of microbatch 5 on stage 2.
#pragma once

#include <compare>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace orthant {

enum class ActionKind {
  F,         // forward
  B,         // full backward: I and W together
  I,         // backward for the input
  W,         // backward for the weights, after I of the same stage and microbatch
  S,         // output layer: logits of the rank's vocabulary shard; then only their maximum (naive order), or
             // exponentials and softmax statistics under the shard's own maximum (all other orders)
  Z,         // output layer, naive order only: exponentials under the maximum of all ranks, and their sum
  T,         // output layer: gradients of its input and of its weights
  TW,        // output layer: gradient of its weights only, if S computes the gradient of its input
  E,         // input layer: lookup of the microbatch's tokens in the rank's vocabulary shard
  EB,        // input layer: gradient of its weights
  SEND_F,    // send the stage's output to the next stage
  RECV_F,    // receive the stage's input from the previous stage
  SEND_B,    // send the gradient of the stage's input to the previous stage
  RECV_B,    // receive the gradient of the stage's output from the next stage
  UNSHARD,   // gather the stage's weights
  RESHARD,   // free the weights that UNSHARD gathered
  REDUCE,    // reduce one bucket of the stage's gradients over the data axes
  FINALIZE,  // receive the final gradient norm of the previous step, and undo that step if the norm forbids it
  STEP,      // optimizer step of all the rank's stages, unless the statistics of the ranks before forbid it
};

/// The stream of the schedule that an Action occupies: computation, or one of three streams of communication.
enum class Stream { compute, send, receive, collective };

/// Meaning of the number at the end of an Action's text form.
enum class NumberMeaning { microbatch, bucket, nothing };

/// Properties of a kind. A new kind needs one new line in the table in action.cc.
struct KindFacts {
  ActionKind kind;
  std::string_view text;     // in the text form of an Action
  std::string_view meaning;  // for legends; kinds with the same meaning share one entry
  Stream stream;
  NumberMeaning counts;
  std::string_view color;  // color in drawings; distinct within a stream, also for color-blind readers
};

/// Properties of all kinds, in the order of the enum.
std::span<const KindFacts> action_kinds();
/// Properties of one kind.
const KindFacts& facts(ActionKind kind);
/// Number of kinds.
inline constexpr size_t kActionKinds = static_cast<size_t>(ActionKind::STEP) + 1;

struct Action {
  ActionKind kind = ActionKind::F;
  int stage = 0;        // kinds without a stage (vocabulary, FINALIZE, STEP) use the rank's first stage
  int microbatch = -1;  // REDUCE: index of the gradient bucket, -1 for the whole stage; -1 for kinds without a number

  auto operator<=>(const Action&) const = default;
};

/// The Action's microbatch; -1 for kinds without a microbatch.
int microbatch_of(const Action& action);
/// Whether the kind is F, B, I or W.
bool is_computation(const Action& action);
/// Whether the kind is F, B or I, which read the weights of their stage. W multiplies activations by gradients.
bool reads_weights(const Action& action);
/// Whether the kind is a SEND or a RECV.
bool is_message(const Action& action);
/// Whether the kind is S, Z, T, TW, E or EB, which every rank runs for every microbatch: see barriers.h.
bool is_vocabulary(const Action& action);
/// Whether the kind is FINALIZE or STEP. Both run in a chain over the ranks: STEP after the previous rank has begun its
/// STEP, FINALIZE after the next rank has begun its FINALIZE. Qi et al. 2023, "Zero Bubble Pipeline Parallelism", arXiv
/// 2401.10241, section 4.
bool is_step_action(const Action& action);
/// Change in the number of live (stage, microbatch) pairs: +1 for F, -1 for B and W, otherwise 0.
int in_flight_change(const Action& action);
/// The RECV that matches a SEND, or the SEND that matches a RECV. It belongs to the neighboring stage.
Action matching_message(const Action& message);

/// Text form: "2F5", "3SEND_F1", "0UNSHARD", "0REDUCE_GRAD3" (bucket 3), "0REDUCE_GRAD" (the whole stage).
std::string to_string(const Action& action);
/// Parses the text form of to_string(). Throws DataError for any other text.
Action parse_action(std::string_view text);

}  // namespace orthant
