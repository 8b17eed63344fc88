// Action: one thing that a rank does at one point of a training step: (kind, stage, microbatch). Printed as PyTorch's
// pipelining prints it: 2F5 is the forward of microbatch 5 on stage 2.
#pragma once

#include <compare>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace orthant {

enum class ActionKind {
  F,        // forward
  B,        // full backward: I and W in one
  I,        // backward for the input
  W,        // backward for the weights, after I of the same stage and microbatch
  S,        // output layer: logits over the rank's rows of the vocabulary and, as far as known, their softmax
  Z,        // output layer in the naive order: exponentials under all ranks' maximum, and their sum
  T,        // output layer: gradients of its input and of its weights
  TW,       // output layer: gradient of its weights alone, where S has made that of its input as well
  E,        // input layer: the microbatch's tokens looked up in the rank's rows of the vocabulary
  EB,       // input layer: gradient of its weights
  SEND_F,   // the stage's output to the next stage
  RECV_F,   // the stage's input from the stage before
  SEND_B,   // the gradient of the stage's input to the stage before
  RECV_B,   // the gradient of the stage's output from the next stage
  UNSHARD,  // gather the stage's weights
  RESHARD,  // drop what UNSHARD gathered
  REDUCE,   // reduce one bucket of the stage's gradients over the data axes
  SETTLE,   // the norm of the step before comes from the next rank; what it forbids is undone: see settles()
  STEP,     // the optimizer's step of all the rank's stages, as far as the ranks before it permit
};

/// What an Action keeps busy: compute, or a lane of communication beside it.
enum class Lane { compute, send, receive, collective };

/// What the third field of an Action counts.
enum class ThirdField { microbatch, bucket, nothing };

/// All that is known about a kind. A new kind is a new line in the table in action.cc.
struct KindFacts {
  ActionKind kind;
  std::string_view text;     // in the printed Action
  std::string_view meaning;  // for legends; kinds that share it share the entry
  Lane lane;
  ThirdField counts;
  std::string_view color;  // of the box in drawings; distinct, for color-blind readers too, within a lane
};

/// In the order of the enum.
std::span<const KindFacts> action_kinds();
const KindFacts& facts(ActionKind kind);
/// Number of kinds.
inline constexpr size_t kActionKinds = static_cast<size_t>(ActionKind::STEP) + 1;

struct Action {
  ActionKind kind = ActionKind::F;
  int stage = 0;        // of what is no stage's (vocabulary, SETTLE, STEP): the rank's first, so that its owner has it
  int microbatch = -1;  // REDUCE: the gradient bucket, -1 for all of the stage; of what counts nothing: -1

  auto operator<=>(const Action&) const = default;
};

/// -1 where it counts none.
int microbatch_of(const Action& action);
/// Whether it is F, B, I or W.
bool is_computation(const Action& action);
/// Whether it is a SEND or a RECV.
bool is_message(const Action& action);
/// Whether it is one of S, Z, T, TW, E and EB, which every rank does for every microbatch: see barriers.h.
bool is_vocabulary(const Action& action);
/// Whether it is SETTLE or STEP. Ranks do both in a chain: STEP after the rank before has begun its own, SETTLE after
/// the rank behind has (Qi et al. 2023, "Zero Bubble Pipeline Parallelism", arXiv 2401.10241, section 4).
bool settles(const Action& action);
/// How many (stage, microbatch) pairs more are held after it: from F to B or W.
int held_by(const Action& action);
/// The RECV of a SEND, and the SEND of a RECV, on the neighboring stage.
Action other_end(const Action& message);

/// "2F5", "3SEND_F1", "0UNSHARD", "0REDUCE_GRAD3" (bucket 3), "0REDUCE_GRAD" (the whole stage).
std::string to_string(const Action& action);
/// Reads what to_string() wrote; DataError if it is anything else.
Action parse_action(std::string_view text);

}  // namespace orthant
