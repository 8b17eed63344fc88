// A machine that carries out the rows of a schedule: the oracle for validate().
#pragma once

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "schedule/schedule.h"

namespace orthant {

/// Simulates ranks whose messages are all rendezvous: a SEND waits until the other rank reaches its RECV, and a RECV
/// until the other reaches its SEND. Every rule is checked at the moment at which a real run would fail. No rule is
/// taken from validate().
class Machine {
 public:
  Machine(const Schedule& schedule, int microbatches, const std::vector<int>& buckets)
      : schedule_(schedule), microbatches_(microbatches), buckets_(buckets) {
    for (const auto& row : schedule.rows)
      for (const Action& action : row) {
        messages_ |= is_message(action);
        kinds_.insert(action.kind);
        if (action.kind == ActionKind::UNSHARD || action.kind == ActionKind::RESHARD) sharded_.insert(action.stage);
      }
  }

  /// Whether the step terminates with complete and correct work.
  bool works() {
    next_.assign(schedule_.rows.size(), 0);
    for (bool moved = true; moved && !broken_;) {
      moved = false;
      for (size_t rank = 0; rank < next_.size(); ++rank)
        while (current(static_cast<int>(rank)) != nullptr && !broken_ &&
               act(static_cast<int>(rank), *current(static_cast<int>(rank)))) {
          ++next_[rank];
          moved = true;
        }
    }
    for (size_t rank = 0; rank < next_.size(); ++rank)
      if (current(static_cast<int>(rank)) != nullptr) return false;
    return !broken_ && complete();
  }

 private:
  using Tensor = std::tuple<bool, int, int>;  // is an activation (not a gradient), stage that reads it, microbatch

  const Action* current(int rank) const {
    const auto& row = schedule_.rows[static_cast<size_t>(rank)];
    const size_t next = next_[static_cast<size_t>(rank)];
    return next < row.size() ? &row[next] : nullptr;
  }
  int stages() const { return static_cast<int>(schedule_.stage_owner.size()); }
  int owner(int stage) const { return schedule_.stage_owner[static_cast<size_t>(stage)]; }
  bool fail() {
    broken_ = true;
    return true;
  }
  /// Records an event. Its second occurrence is a failure.
  void once(const std::string& what) { broken_ |= !done_.insert(what).second; }

  bool act(int rank, const Action& action) {
    if (action.stage >= stages() || owner(action.stage) != rank) return fail();
    const KindFacts& kind = facts(action.kind);
    if (stepped_.contains(rank)) return fail();
    if (is_step_action(action)) return act_on_step(rank, action);
    const bool in_range = action.microbatch >= 0 && action.microbatch < microbatches_;
    if (kind.counts == NumberMeaning::microbatch && !in_range) return fail();
    if (action.kind == ActionKind::UNSHARD) return whole_.insert(action.stage).second || fail();
    if (action.kind == ActionKind::RESHARD) return whole_.erase(action.stage) == 1 || fail();
    if (kind.stream != Stream::send && kind.stream != Stream::receive &&
        (action.kind != ActionKind::F || action.stage == stages() - 1))
      touched_.insert(rank);
    if (action.kind == ActionKind::REDUCE) return reduce(action);
    if (kind.stream != Stream::compute) return message(action);
    if (reads_weights(action) && sharded_.contains(action.stage) && !whole_.contains(action.stage)) return fail();
    return is_vocabulary(action) ? vocabulary(rank, action) : compute(rank, action);
  }

  /// FINALIZE or STEP: chains over the ranks, STEP from the first to the last, FINALIZE from the last to the first.
  bool act_on_step(int rank, const Action& action) {
    const bool step = action.kind == ActionKind::STEP;
    if (action.microbatch >= 0) return fail();
    for (int other = 0; other < action.stage; ++other)
      if (owner(other) == rank) return fail();
    // The gradients of the previous step may still be needed to repeat it.
    if (!step && touched_.contains(rank)) return fail();
    std::set<int>& done = step ? stepped_ : finalized_;
    const int before = rank + (step ? -1 : 1);
    if (before >= 0 && before < static_cast<int>(next_.size()) && !done.contains(before)) return false;
    return done.insert(rank).second || fail();
  }

  bool compute(int rank, const Action& action) {
    using enum ActionKind;
    const int m = action.microbatch, last = stages() - 1;
    if (action.kind == F) {
      if (action.stage > 0 && !here_.contains({true, action.stage, m})) return false;
      if (action.stage == 0 && cuts_input() && !all_have(E, m)) return false;  // the sum of embeddings is not complete
      if (action.stage == last && cuts_output() && !issue("output", rank, m)) return fail();
      once(to_string(action));
      deliver(rank, {true, action.stage + 1, m});
      return true;
    }
    const auto name = [&](const char* kind) { return std::to_string(action.stage) + kind + std::to_string(m); };
    if (!done_.contains(name("F"))) return fail();  // no saved activations for this backward
    if (action.kind != W) {
      if (action.stage == last && cuts_output() && !all_have(kinds_.contains(T) ? T : S, m)) return false;
      if (action.stage + 1 < stages() && !here_.contains({false, action.stage, m})) return false;
      if (action.stage == 0 && cuts_input() && !issue("input", rank, m)) return fail();
      once(name("input"));
      deliver(rank, {false, action.stage - 1, m});
    }
    if (action.kind == ActionKind::W && !split_.contains(name("input"))) return fail();
    if (action.kind == ActionKind::I) split_.insert(name("input"));
    if (action.kind != ActionKind::I) once(name("weight"));
    last_weight_[action.stage] += action.kind == ActionKind::I ? 0 : 1;
    return true;
  }

  bool cuts_output() const {
    using enum ActionKind;
    return kinds_.contains(S) || kinds_.contains(Z) || kinds_.contains(T) || kinds_.contains(TW);
  }
  bool cuts_input() const { return kinds_.contains(ActionKind::E) || kinds_.contains(ActionKind::EB); }
  static std::string part(ActionKind kind, int rank, int m) {
    return std::string(facts(kind).text) + " of microbatch " + std::to_string(m) + " on rank " + std::to_string(rank);
  }
  bool all_have(ActionKind kind, int m) const {
    for (int rank = 0; rank < static_cast<int>(next_.size()); ++rank)
      if (!done_.contains(part(kind, rank, m))) return false;
    return true;
  }
  /// Issues the next collective of a communicator on a rank. False if it is another microbatch's turn.
  bool issue(const std::string& communicator, int rank, int m) { return issued_[{communicator, rank}]++ == m; }

  /// Whether every rank except the sender has reached, or passed, the Action of this kind and microbatch.
  bool all_came(ActionKind kind, int sender, int m) const {
    for (int rank = 0; rank < static_cast<int>(next_.size()); ++rank) {
      const Action* here = current(rank);
      const bool stands = here != nullptr && here->kind == kind && here->microbatch == m;
      if (rank != sender && !stands && !done_.contains(part(kind, rank, m))) return false;
    }
    return true;
  }

  /// Work of one rank for its shard of a vocabulary layer.
  bool vocabulary(int rank, const Action& action) {
    using enum ActionKind;
    const auto [kind, stage, m] = action;
    for (int other = 0; other < stage; ++other)
      if (owner(other) == rank) return fail();
    // Ranks disagree about who computes the gradient of the output layer's input.
    if (kind == TW && kinds_.contains(T)) return fail();
    if (kind == S || kind == EB) {  // these read a broadcast
      const int source = kind == S ? stages() - 1 : 0;
      const std::string made = std::to_string(source) + (kind == S ? "F" : "input") + std::to_string(m);
      if (!done_.contains(made) || (owner(source) != rank && !all_came(kind, owner(source), m))) return false;
      if (kind == EB && !done_.contains(part(E, rank, m))) return fail();
    }
    const bool naive = kinds_.contains(Z);
    if ((kind == Z || (kind == T && !naive) || kind == TW) && !all_have(S, m)) return false;
    if (kind == T && naive && !all_have(Z, m)) return false;
    if (!issue(std::string(facts(kind).text), rank, m)) return fail();
    once(part(kind, rank, m));
    if (kind == T || kind == TW || kind == EB) ++last_vocabulary_[stage];
    return true;
  }

  /// Delivers a result of this rank. The reader has it at once if they share a rank, or if the schedule has no
  /// messages.
  void deliver(int rank, Tensor tensor) {
    const int reader = std::get<1>(tensor);
    if (reader < 0 || reader >= stages()) return;
    made_.insert(tensor);
    if (owner(reader) == rank || !messages_) here_.insert(tensor);
  }

  bool message(const Action& action) {
    const bool forward = action.kind == ActionKind::SEND_F || action.kind == ActionKind::RECV_F;
    const bool sends = facts(action.kind).stream == Stream::send;
    const int step = forward ? 1 : -1;
    const int reader = sends ? action.stage + step : action.stage;
    const int maker = sends ? action.stage : action.stage - step;
    if (std::min(reader, maker) < 0 || std::max(reader, maker) >= stages()) return fail();
    if (owner(reader) == owner(maker)) return fail();
    const Tensor tensor{forward, reader, action.microbatch};
    if (sends && !made_.contains(tensor)) return fail();
    const auto used = std::to_string(reader) + (forward ? "F" : "input") + std::to_string(action.microbatch);
    if (done_.contains(used)) return fail();
    // Rendezvous: the other rank must be at the matching Action now. Both then advance together.
    const ActionKind kinds[] = {ActionKind::SEND_F, ActionKind::RECV_F, ActionKind::SEND_B, ActionKind::RECV_B};
    const Action other{kinds[(forward ? 0 : 2) + (sends ? 1 : 0)], sends ? reader : maker, action.microbatch};
    const int peer = owner(other.stage);
    if (current(peer) == nullptr || !(*current(peer) == other)) return false;
    if (!made_.contains(tensor)) return fail();
    // One of the two would send or receive it again after undoing the step.
    const bool anew = finalized_.contains(peer) != finalized_.contains(owner(action.stage));
    if (anew || stepped_.contains(peer)) return fail();
    once("message " + to_string(action));
    once("message " + to_string(other));
    here_.insert(tensor);
    ++next_[static_cast<size_t>(peer)];
    return true;
  }

  // Adds the gradients since the bucket's last reduction to those of the step.
  bool reduce(const Action& action) {
    if (action.microbatch >= buckets_[static_cast<size_t>(action.stage)]) return fail();
    const std::pair<int, int> written{last_weight_[action.stage], last_vocabulary_[action.stage]};
    std::pair<int, int>& reduced = reduced_[{action.stage, action.microbatch}];
    if (written == reduced) return fail();
    reduced = written;
    return true;
  }

  // Whether all gradients of the stage are reduced. The rank's first stage holds its shard of the vocabulary, which is
  // in any of the stage's buckets.
  bool all_reduced(int stage) {
    const bool first = std::find(schedule_.stage_owner.begin(), schedule_.stage_owner.end(), owner(stage)) ==
                       schedule_.stage_owner.begin() + stage;
    const int vocabulary = first ? (cuts_output() + cuts_input()) * microbatches_ : 0;
    bool has_vocabulary = vocabulary == 0 || buckets_[static_cast<size_t>(stage)] == 0;
    for (int bucket = 0; bucket < buckets_[static_cast<size_t>(stage)]; ++bucket) {
      const auto& [weights, rows] = reduced_[{stage, bucket}];
      if (weights != microbatches_) return false;
      has_vocabulary |= rows == vocabulary;
    }
    return has_vocabulary;
  }

  bool complete() {
    using enum ActionKind;
    for (int rank = 0; rank < static_cast<int>(next_.size()); ++rank)
      for (int m = 0; m < microbatches_; ++m) {
        const bool output = done_.contains(part(S, rank, m)) &&
                            (done_.contains(part(T, rank, m)) || done_.contains(part(TW, rank, m)));
        if (cuts_output() && (!output || (kinds_.contains(Z) && !done_.contains(part(Z, rank, m))))) return false;
        if (cuts_input() && (!done_.contains(part(E, rank, m)) || !done_.contains(part(EB, rank, m)))) return false;
      }
    const bool steps = kinds_.contains(FINALIZE) || kinds_.contains(STEP);
    if (steps && (finalized_.size() != next_.size() || stepped_.size() != next_.size())) return false;
    for (int stage = 0; stage < stages(); ++stage) {
      if (!all_reduced(stage)) return false;
      for (int m = 0; m < microbatches_; ++m)
        for (const char* kind : {"F", "input", "weight"})
          if (!done_.contains(std::to_string(stage) + kind + std::to_string(m))) return false;
    }
    return true;
  }

  const Schedule& schedule_;
  int microbatches_;
  const std::vector<int>& buckets_;
  bool messages_ = false, broken_ = false;
  std::map<std::pair<int, int>, std::pair<int, int>> reduced_;  // gradients reduced, by stage and bucket
  std::set<int> sharded_, whole_;
  // Ranks that may have written gradients, completed FINALIZE, completed STEP.
  std::set<int> touched_, finalized_, stepped_;
  std::set<Tensor> here_, made_;
  std::set<std::string> done_, split_;
  std::map<int, int> last_weight_, last_vocabulary_;
  std::set<ActionKind> kinds_;
  std::map<std::pair<std::string, int>, int> issued_;  // number of collectives issued, by communicator and rank
  std::vector<size_t> next_;  // index of each rank's current Action
};

}  // namespace orthant
