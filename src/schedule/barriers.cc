// Counts the arrivals of ranks at the barriers of the vocabulary layers, by microbatch.
#include "schedule/barriers.h"

#include <algorithm>

#include "base/errors.h"

namespace orthant {
namespace {

using enum ActionKind;

}  // namespace

VocabularyKinds vocabulary_kinds(const Schedule& schedule) {
  std::array<bool, kActionKinds> has{};
  for (const auto& row : schedule.rows)
    for (const Action& action : row) has[static_cast<size_t>(action.kind)] = true;
  const auto any = [&](ActionKind kind) { return has[static_cast<size_t>(kind)]; };
  VocabularyKinds out;
  out.input = any(E) || any(EB);
  if (any(Z))
    out.output = {S, Z, T};
  else if (any(T))
    out.output = {S, T};
  else if (any(S) || any(TW))
    out.output = {S, TW};
  return out;
}

std::vector<int> first_stages(const Schedule& schedule) {
  std::vector<int> out(schedule.rows.size(), -1);
  for (size_t stage = schedule.stage_owner.size(); stage-- > 0;)
    if (const int owner = schedule.stage_owner[stage]; owner >= 0 && owner < static_cast<int>(out.size()))
      out[static_cast<size_t>(owner)] = static_cast<int>(stage);
  return out;
}

Barriers::Barriers(const Schedule& schedule)
    : stage_owner_(schedule.stage_owner),
      first_stages_(orthant::first_stages(schedule)),
      passes_(vocabulary_kinds(schedule)),
      any_(!passes_.output.empty() || passes_.input),
      ranks_(static_cast<int>(schedule.rows.size())),
      last_stage_(static_cast<int>(schedule.stage_owner.size()) - 1) {
  if (!any_) return;
  const auto microbatches = static_cast<size_t>(microbatch_count(schedule));
  const auto make = [&](int arrivals) {
    return Gate{.by_rank = std::vector<char>(microbatches * static_cast<size_t>(ranks_), 0),
                .missing = std::vector<int>(microbatches, arrivals),
                .latest_s = std::vector<double>(microbatches, 0)};
  };
  for (const ActionKind kind : {S, Z, T, E}) gate_of(kind) = make(ranks_);
  for (const ActionKind kind : {F, B}) gate_of(kind) = make(1);
  reached_ = {make(ranks_ - 1), make(ranks_ - 1)};
}

bool Barriers::arrive(Gate& gate, const Action& action, double at_s) {
  const auto m = static_cast<size_t>(action.microbatch);
  char& there = gate.by_rank[m * static_cast<size_t>(ranks_) + static_cast<size_t>(owner(action.stage))];
  if (there) return false;
  there = 1;
  gate.latest_s[m] = std::max(gate.latest_s[m], at_s);
  return --gate.missing[m] == 0;
}

/// Whether the Action receives a broadcast. The rank that sends it already has the data and does not wait.
bool Barriers::reads_broadcast(const Action& action) const {
  return (action.kind == S && owner(action.stage) != owner(last_stage_)) ||
         (action.kind == EB && owner(action.stage) != owner(0));
}

bool Barriers::reach(const Action& action) {
  return any_ && reads_broadcast(action) && arrive(reached_[action.kind == EB], action, 0);
}

bool Barriers::done(const Action& action, double end_s) {
  if (!any_) return false;
  ActionKind kind = action.kind == I ? B : action.kind;
  const bool feeds = kind == F   ? action.stage == last_stage_ && !passes_.output.empty()
                     : kind == B ? action.stage == 0 && passes_.input
                                 : kind == S || kind == Z || kind == T || kind == E;
  return feeds && arrive(gate_of(kind), action, end_s);
}

/// The kind that feeds the barrier at which the Action waits, with B for both B and I. Empty if it waits at none.
std::optional<ActionKind> Barriers::feeder(const Action& action) const {
  switch (action.kind) {
    case S: return F;
    case Z:
    case TW: return S;
    case T: return passes_.output.size() == 3 ? Z : S;
    case EB: return B;
    case F:
      if (action.stage == 0 && passes_.input) return E;
      return std::nullopt;
    case B:
    case I:
      if (action.stage == last_stage_ && !passes_.output.empty()) return passes_.output.back() == T ? T : S;
      return std::nullopt;
    default: return std::nullopt;
  }
}

std::optional<double> Barriers::opens_s(const Action& action, double barrier_s) const {
  const std::optional<ActionKind> kind = feeder(action);
  if (!kind) return 0;
  const Gate& gate = gate_of(*kind);
  const auto m = static_cast<size_t>(action.microbatch);
  if (gate.missing[m] > 0) return std::nullopt;
  const bool broadcast = *kind == F || *kind == B;
  return gate.latest_s[m] + (ranks_ == 1 || (broadcast && !reads_broadcast(action)) ? 0 : barrier_s);
}

bool Barriers::met(const Action& action) const {
  if (!any_) return true;
  if (!open_s(action)) return false;
  return !reads_broadcast(action) || reached_[action.kind == EB].missing[static_cast<size_t>(action.microbatch)] == 0;
}

Action Barriers::needed(const Action& action) const {
  const std::optional<ActionKind> kind = feeder(action);
  ORTHANT_CHECK(kind && !met(action), to_string(action));
  const bool fed = open_s(action).has_value();
  if (!fed && (*kind == F || *kind == B)) return {*kind, *kind == F ? last_stage_ : 0, action.microbatch};
  const Gate& gate = fed ? reached_[action.kind == EB] : gate_of(*kind);
  const int sender = owner(action.kind == S ? last_stage_ : 0);
  const size_t at = static_cast<size_t>(action.microbatch) * static_cast<size_t>(ranks_);
  int rank = 0;
  while (gate.by_rank[at + static_cast<size_t>(rank)] || (fed && rank == sender)) ++rank;
  return {fed ? action.kind : *kind, first_stages_[static_cast<size_t>(rank)], action.microbatch};
}

}  // namespace orthant
