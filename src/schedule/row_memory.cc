#include "schedule/row_memory.h"

#include <algorithm>
#include <deque>
#include <map>
#include <vector>

namespace orthant {
namespace {

using enum ActionKind;

// What a rank has sent and not heard of yet.
struct Leaving {
  int place;  // of the RECV in its row
  int64_t bytes;
};

/// A rank's row as it is carried out.
class Walk {
 public:
  using BytesOf = std::function<PassBytes(int stage, int microbatch)>;
  Walk(const Schedule& schedule, const MessagePlaces& places, int rank, const BytesOf& bytes_of)
      : schedule_(schedule),
        places_(places),
        rank_(rank),
        row_(schedule.rows[static_cast<size_t>(rank)]),
        bytes_of_(bytes_of),
        reached_(schedule.rows.size(), -1) {}

  RowBytes run() {
    for (size_t i = 0; i < row_.size(); ++i) {
      const Action& action = row_[i];
      if (facts(action.kind).counts != ThirdField::microbatch) continue;
      post(i);
      if (facts(action.kind).lane == Lane::send) send(action);
      if (facts(action.kind).lane == Lane::compute) compute(action);
      peak(0);
    }
    return most_;
  }

 private:
  PassBytes bytes_of(const Action& action) const { return bytes_of_(action.stage, action.microbatch); }
  int owner(int stage) const { return schedule_.stage_owner[static_cast<size_t>(stage)]; }

  void peak(int64_t beside) {
    most_.kept = std::max(most_.kept, kept_);
    most_.all = std::max(most_.all, kept_ + messages_ + sums_ + beside);
  }

  /// The RECV at i; where a computation stands there, also those before the next.
  void post(size_t i) {
    const Lane lane = facts(row_[i].kind).lane;
    for (posted_ = std::max(posted_, i); posted_ < row_.size(); ++posted_) {
      const Action& next = row_[posted_];
      if (posted_ > i && (lane != Lane::compute || facts(next.kind).lane == Lane::compute)) break;
      if (facts(next.kind).lane != Lane::receive) continue;
      messages_ += next.kind == RECV_F ? bytes_of(next).input : bytes_of(next).output;
    }
  }

  /// What has left for certain goes.
  void send(const Action& action) {
    for (auto& [to, queue] : leaving_) {
      for (; !queue.empty() && queue.front().place < reached_[static_cast<size_t>(to)]; queue.pop_front())
        messages_ -= queue.front().bytes;
    }
    const Action received = other_end(action);
    const int64_t bytes = action.kind == SEND_F ? bytes_of(action).output : bytes_of(action).input;
    leaving_[owner(received.stage)].push_back({places_.posted[received], bytes});
  }

  /// What a pass reads, if anything, goes; its sender has come as far as where it sent it.
  void read(const Action& pass, int64_t bytes) {
    if (bytes == 0) return;
    messages_ -= bytes;
    const Action sent = other_end(recv_of(pass));
    if (owner(sent.stage) == rank_) return;
    int& known = reached_[static_cast<size_t>(owner(sent.stage))];
    known = std::max(known, places_.sent[sent]);
  }

  void compute(const Action& action) {
    const PassBytes bytes = bytes_of(action);
    switch (action.kind) {
      case F:
        read(action, bytes.input);
        kept_ += bytes.kept;
        peak(bytes.forward);
        messages_ += bytes.output;
        break;
      case B:
      case I:
        read(action, bytes.output);
        peak(action.kind == B ? bytes.backward : bytes.backward_for_input);
        kept_ += (action.kind == B ? 0 : bytes.for_weights) - bytes.kept;
        messages_ += bytes.input;
        sums_ += action.kind == B ? bytes.summands : 0;
        break;
      case W:
        peak(bytes.weights);
        kept_ -= bytes.for_weights;
        sums_ += bytes.summands;
        break;
      case S:
        peak(bytes.softmax_forward);
        kept_ += bytes.softmax + bytes.logits;
        break;
      case Z: kept_ -= bytes.logits; break;
      case T:
      case TW:
        peak(bytes.softmax_backward);
        kept_ -= bytes.softmax;
        break;
      case E: peak(bytes.lookup); break;
      case EB: peak(bytes.lookup_backward); break;
      default: break;
    }
  }

  const Schedule& schedule_;
  const MessagePlaces& places_;
  const int rank_;
  const std::vector<Action>& row_;
  const BytesOf& bytes_of_;
  RowBytes most_;
  int64_t kept_ = 0, messages_ = 0, sums_ = 0;
  size_t posted_ = 0;  // RECVs before it are
  std::map<int, std::deque<Leaving>> leaving_;  // by receiver, in the order in which it takes them
  std::vector<int> reached_;  // how far each rank has come, as far as this one knows
};

}  // namespace

RowMemory::RowMemory(const Schedule& schedule)
    : schedule_(schedule),
      places_{.sent = {stage_count(schedule), microbatch_count(schedule), -1},
              .posted = {stage_count(schedule), microbatch_count(schedule), -1}} {
  for (const auto& row : schedule.rows) {
    int pass = -1;  // the last one
    for (int i = 0; i < static_cast<int>(row.size()); ++i) {
      const Action& action = row[static_cast<size_t>(i)];
      const Lane lane = facts(action.kind).lane;
      if (lane == Lane::compute) pass = i;
      if (lane == Lane::send) places_.sent[action] = i;
      if (lane == Lane::receive) places_.posted[action] = pass >= 0 ? pass : i;
    }
  }
}

RowBytes RowMemory::peak(int rank, const std::function<PassBytes(int stage, int microbatch)>& bytes_of) const {
  return Walk(schedule_, places_, rank, bytes_of).run();
}

}  // namespace orthant
