// The table of Action kinds, and the parser of their text form.
#include "schedule/action.h"

#include <array>
#include <charconv>

#include "base/errors.h"

namespace orthant {
namespace {

using enum ActionKind;

// Colors follow Okabe and Ito, "Color Universal Design", with two exceptions. Bookkeeping kinds are gray. The colors of
// the vocabulary kinds come from a search that maximizes the smallest difference to all other colors, for normal and
// for color-blind vision.
constexpr std::array<KindFacts, kActionKinds> kFacts = {{
    {F, "F", "forward", Stream::compute, NumberMeaning::microbatch, "#0072b2"},
    {B, "B", "backward", Stream::compute, NumberMeaning::microbatch, "#e69f00"},
    {I, "I", "backward, input", Stream::compute, NumberMeaning::microbatch, "#d55e00"},
    {W, "W", "backward, weights", Stream::compute, NumberMeaning::microbatch, "#cc79a7"},
    {S, "S", "output: softmax", Stream::compute, NumberMeaning::microbatch, "#7a3ff0"},
    {Z, "Z", "output: sum", Stream::compute, NumberMeaning::microbatch, "#a587ff"},
    {T, "T", "output: backward", Stream::compute, NumberMeaning::microbatch, "#a5f0b4"},
    {TW, "TW", "output: backward", Stream::compute, NumberMeaning::microbatch, "#a5f0b4"},
    {E, "E", "embedding", Stream::compute, NumberMeaning::microbatch, "#788769"},
    {EB, "EB", "embedding, backward", Stream::compute, NumberMeaning::microbatch, "#4b1e0f"},
    {SEND_F, "SEND_F", "activation message", Stream::send, NumberMeaning::microbatch, "#56b4e9"},
    {RECV_F, "RECV_F", "activation message", Stream::receive, NumberMeaning::microbatch, "#56b4e9"},
    {SEND_B, "SEND_B", "gradient message", Stream::send, NumberMeaning::microbatch, "#e69f00"},
    {RECV_B, "RECV_B", "gradient message", Stream::receive, NumberMeaning::microbatch, "#e69f00"},
    {UNSHARD, "UNSHARD", "gather weights", Stream::collective, NumberMeaning::nothing, "#999999"},
    {RESHARD, "RESHARD", "free weights", Stream::collective, NumberMeaning::nothing, "#666666"},
    {REDUCE, "REDUCE_GRAD", "reduce gradients", Stream::collective, NumberMeaning::bucket, "#cc79a7"},
    {FINALIZE, "FINALIZE", "optimizer, finalize", Stream::compute, NumberMeaning::nothing, "#646464"},
    {STEP, "STEP", "optimizer", Stream::compute, NumberMeaning::nothing, "#c4c4c4"},
}};

constexpr bool in_order() {
  for (size_t i = 0; i < kFacts.size(); ++i)
    if (static_cast<size_t>(kFacts[i].kind) != i) return false;
  return true;
}
static_assert(in_order(), "the table has the order of the enum");

/// Removes a number from the front of the text. Returns false if there is none, or if it is 2^30 or more, so that sums
/// of it cannot overflow.
bool take_number(std::string_view& text, int& number) {
  constexpr int kEnd = 1 << 30;
  if (text.empty() || text[0] < '0' || text[0] > '9') return false;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || number >= kEnd) return false;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return true;
}

/// Text of a cell for an error message: at most 40 bytes, with control and non-ASCII bytes escaped.
std::string shown(std::string_view text) {
  constexpr size_t kMost = 40;
  std::string out;
  for (const char c : text.substr(0, kMost)) {
    out += c >= ' ' && c <= '~' ? std::string(1, c) : fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  }
  return text.size() > kMost ? out + "..." : out;
}

}  // namespace

std::span<const KindFacts> action_kinds() { return kFacts; }

const KindFacts& facts(ActionKind kind) { return kFacts.at(static_cast<size_t>(kind)); }

int microbatch_of(const Action& action) {
  return facts(action.kind).counts == NumberMeaning::microbatch ? action.microbatch : -1;
}

bool is_computation(const Action& action) { return action.kind >= F && action.kind <= W; }

bool reads_weights(const Action& action) { return action.kind == F || action.kind == B || action.kind == I; }

bool is_message(const Action& action) {
  return action.kind >= SEND_F && action.kind <= RECV_B;
}

bool is_vocabulary(const Action& action) { return action.kind >= S && action.kind <= EB; }

bool is_step_action(const Action& action) { return action.kind == FINALIZE || action.kind == STEP; }

int in_flight_change(const Action& action) {
  return action.kind == F ? 1 : action.kind == B || action.kind == W ? -1 : 0;
}

Action matching_message(const Action& message) {
  const auto [kind, stage, m] = message;
  ORTHANT_CHECK(kind == SEND_F || kind == RECV_F || kind == SEND_B || kind == RECV_B, to_string(message));
  return kind == SEND_F   ? Action{RECV_F, stage + 1, m}
         : kind == RECV_F ? Action{SEND_F, stage - 1, m}
         : kind == SEND_B ? Action{RECV_B, stage - 1, m}
                          : Action{SEND_B, stage + 1, m};
}

std::string to_string(const Action& action) {
  const std::string out = fmt::format("{}{}", action.stage, facts(action.kind).text);
  return action.microbatch < 0 ? out : fmt::format("{}{}", out, action.microbatch);
}

Action parse_action(std::string_view text) {
  const auto fail = [&](std::string_view why) {
    throw DataError(fmt::format("'{}' is not an Action such as 2F5 or 0UNSHARD: {}", shown(text), why));
  };
  std::string_view rest = text;
  Action action;
  if (!take_number(rest, action.stage)) fail("it does not begin with a stage");
  const std::string_view word = rest.substr(0, rest.find_first_of("0123456789"));
  rest.remove_prefix(word.size());
  const KindFacts* found = nullptr;
  for (const KindFacts& each : kFacts)
    if (each.text == word) found = &each;
  if (found == nullptr)
    throw DataError(fmt::format("'{}' is not an Action such as 2F5: unknown kind '{}'", shown(text), shown(word)));
  action.kind = found->kind;
  const bool numbered = take_number(rest, action.microbatch);
  if (!rest.empty()) fail("text follows it");
  if (numbered && found->counts == NumberMeaning::nothing) fail("this kind does not end with a number");
  if (!numbered && found->counts == NumberMeaning::microbatch) fail("it does not end with a microbatch");
  return action;
}

}  // namespace orthant
