// A machine that carries out the rows of a schedule: what validate() is judged by.
#pragma once

#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "base/errors.h"
#include "schedule/schedule.h"

namespace orthant {

/// Ranks that meet for every message: a SEND waits until the other rank has come to its RECV, and a RECV to its SEND.
/// Every rule is checked at the moment at which a real run would fail by it; none is taken from validate().
class Machine {
 public:
  Machine(const Schedule& schedule, int microbatches, const std::vector<int>& buckets)
      : schedule_(schedule), microbatches_(microbatches), buckets_(buckets) {
    for (const auto& row : schedule.rows)
      for (const Action& action : row) {
        messages_ |= is_message(action);
        if (action.kind == ActionKind::UNSHARD || action.kind == ActionKind::RESHARD) sharded_.insert(action.stage);
      }
  }

  /// Whether the step ends, and ends right.
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
  using Tensor = std::tuple<bool, int, int>;  // activation or gradient, the stage that reads it, microbatch

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
  /// A second time is a failure.
  void once(const std::string& what) { broken_ |= !done_.insert(what).second; }

  bool act(int rank, const Action& action) {
    if (action.stage >= stages() || owner(action.stage) != rank) return fail();
    const KindFacts& kind = facts(action.kind);
    const bool in_range = action.microbatch >= 0 && action.microbatch < microbatches_;
    if (kind.counts == ThirdField::microbatch && !in_range) return fail();
    if (action.kind == ActionKind::UNSHARD) return whole_.insert(action.stage).second || fail();
    if (action.kind == ActionKind::RESHARD) return whole_.erase(action.stage) == 1 || fail();
    if (action.kind == ActionKind::REDUCE) return reduce(action);
    if (kind.lane != Lane::compute) return message(action);
    if (sharded_.contains(action.stage) && !whole_.contains(action.stage)) return fail();
    return compute(rank, action);
  }

  bool compute(int rank, const Action& action) {
    const int m = action.microbatch;
    if (action.kind == ActionKind::F) {
      if (action.stage > 0 && !here_.contains({true, action.stage, m})) return false;
      once(to_string(action));
      deliver(rank, {true, action.stage + 1, m});
      return true;
    }
    const auto name = [&](const char* kind) { return std::to_string(action.stage) + kind + std::to_string(m); };
    if (!done_.contains(name("F"))) return fail();  // nothing kept to go back through
    if (action.kind != ActionKind::W) {
      if (action.stage + 1 < stages() && !here_.contains({false, action.stage, m})) return false;
      once(name("input"));
      deliver(rank, {false, action.stage - 1, m});
    }
    if (action.kind == ActionKind::W && !split_.contains(name("input"))) return fail();
    if (action.kind == ActionKind::I) split_.insert(name("input"));
    if (action.kind != ActionKind::I) once(name("weight"));
    last_weight_[action.stage] += action.kind == ActionKind::I ? 0 : 1;
    return true;
  }

  /// A result of this rank; on the reader's side at once, where no message carries it.
  void deliver(int rank, Tensor tensor) {
    const int reader = std::get<1>(tensor);
    if (reader < 0 || reader >= stages()) return;
    made_.insert(tensor);
    if (owner(reader) == rank || !messages_) here_.insert(tensor);
  }

  bool message(const Action& action) {
    const bool forward = action.kind == ActionKind::SEND_F || action.kind == ActionKind::RECV_F;
    const bool sends = facts(action.kind).lane == Lane::send;
    const int step = forward ? 1 : -1;
    const int reader = sends ? action.stage + step : action.stage;
    const int maker = sends ? action.stage : action.stage - step;
    if (std::min(reader, maker) < 0 || std::max(reader, maker) >= stages()) return fail();
    if (owner(reader) == owner(maker)) return fail();
    const Tensor tensor{forward, reader, action.microbatch};
    if (sends && !made_.contains(tensor)) return fail();
    const auto used = std::to_string(reader) + (forward ? "F" : "input") + std::to_string(action.microbatch);
    if (done_.contains(used)) return fail();
    // The other end has to be where its rank is now; both go on at once.
    const ActionKind kinds[] = {ActionKind::SEND_F, ActionKind::RECV_F, ActionKind::SEND_B, ActionKind::RECV_B};
    const Action other{kinds[(forward ? 0 : 2) + (sends ? 1 : 0)], sends ? reader : maker, action.microbatch};
    const int peer = owner(other.stage);
    if (current(peer) == nullptr || !(*current(peer) == other)) return false;
    if (!made_.contains(tensor)) return fail();
    once("message " + to_string(action));
    once("message " + to_string(other));
    here_.insert(tensor);
    ++next_[static_cast<size_t>(peer)];
    return true;
  }

  bool reduce(const Action& action) {
    if (last_weight_[action.stage] != microbatches_) return fail();
    if (action.microbatch >= buckets_[static_cast<size_t>(action.stage)]) return fail();
    once(to_string(action));
    ++reduced_;
    return true;
  }

  bool complete() {
    int buckets = 0;
    for (int stage = 0; stage < stages(); ++stage) {
      buckets += buckets_[static_cast<size_t>(stage)];
      for (int m = 0; m < microbatches_; ++m)
        for (const char* kind : {"F", "input", "weight"})
          if (!done_.contains(std::to_string(stage) + kind + std::to_string(m))) return false;
    }
    return reduced_ == buckets;
  }

  const Schedule& schedule_;
  int microbatches_;
  const std::vector<int>& buckets_;
  bool messages_ = false, broken_ = false;
  int reduced_ = 0;
  std::set<int> sharded_, whole_;
  std::set<Tensor> here_, made_;
  std::set<std::string> done_, split_;
  std::map<int, int> last_weight_;
  std::vector<size_t> next_;  // index of the Action that a rank has come to
};

}  // namespace orthant
