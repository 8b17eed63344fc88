#include "schedule/row_memory.h"

#include <algorithm>

namespace orthant {
namespace {

using enum ActionKind;

// What a rank has sent and not heard of yet.
struct Leaving {
  int to;     // pipeline rank
  int place;  // of the RECV in its row
  int64_t bytes;
};

}  // namespace

RowMemory::RowMemory(const Schedule& schedule)
    : schedule_(schedule),
      stages_(stage_count(schedule)),
      microbatches_(microbatch_count(schedule)),
      places_(4 * static_cast<size_t>(stages_) * static_cast<size_t>(microbatches_), -1) {
  for (const auto& row : schedule.rows) {
    int pass = -1;  // the last one
    for (size_t i = 0; i < row.size(); ++i) {
      const Lane lane = facts(row[i].kind).lane;
      if (lane == Lane::compute) pass = static_cast<int>(i);
      if (is_message(row[i])) place(row[i]) = lane == Lane::receive && pass >= 0 ? pass : static_cast<int>(i);
    }
  }
}

int& RowMemory::place(const Action& message) {
  const int kind = message.kind == SEND_F ? 0 : message.kind == RECV_F ? 1 : message.kind == SEND_B ? 2 : 3;
  const auto pass = static_cast<size_t>(kind * stages_ + message.stage) * static_cast<size_t>(microbatches_);
  return places_[pass + static_cast<size_t>(message.microbatch)];
}

RowBytes RowMemory::peak(int rank, const std::function<PassBytes(int stage, int microbatch)>& bytes_of) const {
  RowBytes most;
  int64_t kept = 0, messages = 0, sums = 0;
  std::vector<Leaving> leaving;
  std::vector<int> reached(schedule_.rows.size(), -1);  // how far each rank has come, as far as this one knows
  const auto peak = [&](int64_t beside) {
    most.kept = std::max(most.kept, kept);
    most.all = std::max(most.all, kept + messages + sums + beside);
  };
  const auto owner = [&](int stage) { return schedule_.stage_owner[static_cast<size_t>(stage)]; };
  const auto read = [&](const Action& received, int64_t bytes) {
    messages -= bytes;
    const Action sent = other_end(received);
    if (bytes == 0 || owner(sent.stage) == rank) return;
    int& known = reached[static_cast<size_t>(owner(sent.stage))];
    known = std::max(known, place(sent));
  };
  const auto send = [&](const Action& action, int64_t bytes) {
    std::erase_if(leaving, [&](const Leaving& gone) {
      const bool met = gone.place < reached[static_cast<size_t>(gone.to)];
      if (met) messages -= gone.bytes;
      return met;
    });
    const Action received = other_end(action);
    leaving.push_back({owner(received.stage), place(received), bytes});
  };
  const auto& row = schedule_.rows[static_cast<size_t>(rank)];
  const auto post = [&](const Action& receive) {
    const PassBytes bytes = bytes_of(receive.stage, receive.microbatch);
    messages += receive.kind == RECV_F ? bytes.input : bytes.output;
  };
  size_t posted = 0;  // RECVs before it are
  for (size_t i = 0; i < row.size(); ++i) {
    if (facts(row[i].kind).counts != ThirdField::microbatch) continue;
    const auto [kind, stage, microbatch] = row[i];
    const Lane lane = facts(kind).lane;
    for (posted = std::max(posted, i); posted < row.size(); ++posted) {
      const Lane next = facts(row[posted].kind).lane;
      if (posted > i && (lane != Lane::compute || next == Lane::compute)) break;
      if (next == Lane::receive) post(row[posted]);
    }
    const PassBytes bytes = bytes_of(stage, microbatch);
    switch (kind) {
      case SEND_F: send(row[i], bytes.output); break;
      case SEND_B: send(row[i], bytes.input); break;
      case F:
        if (bytes.input > 0) read({RECV_F, stage, microbatch}, bytes.input);
        kept += bytes.kept;
        peak(bytes.forward);
        messages += bytes.output;
        break;
      case B:
      case I:
        if (bytes.output > 0) read({RECV_B, stage, microbatch}, bytes.output);
        peak(kind == B ? bytes.backward : bytes.backward_for_input);
        kept += (kind == B ? 0 : bytes.for_weights) - bytes.kept;
        messages += bytes.input;
        sums += kind == B ? bytes.summands : 0;
        break;
      case W:
        peak(bytes.weights);
        kept -= bytes.for_weights;
        sums += bytes.summands;
        break;
      case S: kept += bytes.softmax; break;
      case T:
      case TW: kept -= bytes.softmax; break;
      default: break;
    }
    peak(0);
  }
  return most;
}

}  // namespace orthant
