// Event simulation of a schedule. A queue holds the ranks that may be able to continue; each runs until it must wait.
#include "schedule/simulate.h"

#include <algorithm>
#include <deque>
#include <optional>
#include <utility>

#include "base/errors.h"
#include "schedule/barriers.h"
#include "schedule/bubbles.h"
#include "schedule/results.h"

namespace orthant {
namespace {

/// One message into a stage. It has arrived when it is both sent and its RECV is posted. The simulation may find either
/// of the two first.
struct Message {
  double began_s = kUnknown_s;   // time at which the first byte is sent
  double sent_s = kUnknown_s;    // time at which the last byte is sent
  double posted_s = kUnknown_s;  // time at which the RECV is posted
  double there_s = kUnknown_s;   // time of arrival
  size_t span = 0;               // index of the RECV's span
};

struct RankState {
  size_t next = 0;                       // index of the next Action
  double now_s = 0;                      // time at which the row can continue
  std::array<double, 4> stream_free_s{};  // time at which each stream is free, by Stream
  int live = 0;                          // (stage, microbatch) pairs between F and B or W
};

class Simulation {
 public:
  Simulation(const Schedule& schedule, const Durations& durations)
      : schedule_(schedule),
        durations_(durations),
        stages_(stage_count(schedule)),
        microbatches_(microbatch_count(schedule)),
        made_s_(stages_, microbatches_, kUnknown_s),
        messages_(stages_, microbatches_, {}),
        barriers_(schedule),
        unsharded_(static_cast<size_t>(stages_), 0),
        backward_(static_cast<size_t>(stages_)),
        finalized_s_(schedule.rows.size()),
        stepped_s_(schedule.rows.size()),
        ranks_(schedule.rows.size()) {
    ORTHANT_CHECK(static_cast<int>(schedule.stage_owner.size()) == stages_, schedule.stage_owner.size(), stages_);
    for (const auto& row : schedule.rows)
      for (const Action& action : row) sends_ |= facts(action.kind).stream == Stream::send;
    size_t actions = 0;
    for (const auto& row : schedule.rows) first_span_.push_back(std::exchange(actions, actions + row.size()));
    timeline_.spans.resize(actions);
    timeline_.busy.assign(ranks_.size(), 0);
    timeline_.peak_in_flight.assign(ranks_.size(), 0);
  }

  Timeline run() {
    std::deque<int> ready;
    std::vector<char> queued(ranks_.size(), 1);
    for (size_t rank = 0; rank < ranks_.size(); ++rank) ready.push_back(static_cast<int>(rank));
    while (!ready.empty()) {
      const int rank = ready.front();
      ready.pop_front();
      queued[static_cast<size_t>(rank)] = 0;
      woken_.clear();
      while (advance(rank)) {
      }
      for (const int other : woken_) {
        if (other == rank || queued[static_cast<size_t>(other)]) continue;
        queued[static_cast<size_t>(other)] = 1;
        ready.push_back(other);
      }
    }
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      const auto& row = schedule_.rows[rank];
      if (ranks_[rank].next < row.size())
        throw LogicError(fmt::format("the schedule deadlocks: rank {} is blocked at its Action {}, {}", rank,
                                     ranks_[rank].next, to_string(row[ranks_[rank].next])));
    }
    for (const Span& span : timeline_.spans)
      if (span.start == kUnknown_s)
        throw LogicError(
            fmt::format("the schedule deadlocks: no SEND matches {} of rank {}", to_string(span.action), span.rank));
    timeline_.bubble = idle_fraction(timeline_);
    return std::move(timeline_);
  }

 private:
  /// The rank that owns the stage; -1 if there is no such stage.
  int owner(int stage) const {
    return stage >= 0 && stage < stages_ ? schedule_.stage_owner[static_cast<size_t>(stage)] : -1;
  }
  void wake(int stage) {
    if (owner(stage) >= 0) woken_.push_back(owner(stage));
  }
  void wake_all() {
    for (size_t rank = 0; rank < ranks_.size(); ++rank) woken_.push_back(static_cast<int>(rank));
  }

  /// Does the rank's next Action if all times that it depends on are known. Returns false if it must wait or the row is
  /// done.
  bool advance(int rank) {
    RankState& state = ranks_[static_cast<size_t>(rank)];
    const auto& row = schedule_.rows[static_cast<size_t>(rank)];
    if (state.next == row.size()) return false;
    const Action& action = row[state.next];
    const Stream stream = facts(action.kind).stream;
    const bool done = is_step_action(action)      ? run_step_action(rank, state, action)
                      : stream == Stream::compute ? compute(rank, state, action)
                      : stream == Stream::send    ? send(rank, state, action)
                      : stream == Stream::receive ? receive(rank, state, action)
                                                  : collective(rank, state, action);
    if (done) ++state.next;
    return done;
  }

  /// Time at which the pass can read its input from the neighboring stage; kUnknown_s if not known yet.
  double arrival(int rank, const Action& action) const {
    const bool local = owner(producer_of(action).stage) == rank;
    if (sends_ && !local) return messages_[recv_of(action)].there_s;
    const double made_s = made_s_[producer_of(action)];
    return made_s == kUnknown_s || local
               ? made_s
               : made_s + durations_.link(owner(producer_of(action).stage), rank, action.microbatch);
  }

  bool compute(int rank, RankState& state, const Action& action) {
    const std::optional<double> open_s = barriers_.open_s(action, durations_.barrier(action));
    if (!open_s) return false;
    double start_s = std::max({state.now_s, unsharded_[static_cast<size_t>(action.stage)], *open_s});
    if (produces_result(action) && made_s_.has(producer_of(action))) {
      const double there_s = arrival(rank, action);
      if (there_s == kUnknown_s) return false;
      start_s = std::max(start_s, there_s);
    }
    state.now_s = start_s + durations_.of(action);
    add(rank, action, start_s, state.now_s);
    timeline_.busy[static_cast<size_t>(rank)] += durations_.of(action);
    if (action.kind == ActionKind::B || action.kind == ActionKind::W) {
      backward_[static_cast<size_t>(action.stage)] = {start_s, state.now_s};
    }
    state.live += in_flight_change(action);
    int& peak = timeline_.peak_in_flight[static_cast<size_t>(rank)];
    peak = std::max(peak, state.live);
    if (barriers_.done(action, state.now_s)) wake_all();
    if (!produces_result(action)) return true;
    made_s_[action] = state.now_s;
    wake(consumer_of(action).stage);
    return true;
  }

  bool run_step_action(int rank, RankState& state, const Action& action) {
    const bool step = action.kind == ActionKind::STEP;
    auto& began_s = step ? stepped_s_ : finalized_s_;
    const int before = rank + (step ? -1 : 1), after = rank + (step ? 1 : -1);
    const auto exists = [&](int other) { return other >= 0 && other < static_cast<int>(ranks_.size()); };
    std::vector<double>& own_s = began_s[static_cast<size_t>(rank)];
    double start_s = std::max(state.now_s, state.stream_free_s[static_cast<size_t>(Stream::collective)]);
    if (exists(before)) {
      const std::vector<double>& other_s = began_s[static_cast<size_t>(before)];
      if (other_s.size() <= own_s.size()) return false;
      start_s = std::max(start_s, other_s[own_s.size()] + durations_.link(before, rank));
    }
    own_s.push_back(start_s);
    state.now_s = start_s + durations_.of(action);
    add(rank, action, start_s, state.now_s);
    timeline_.busy[static_cast<size_t>(rank)] += durations_.of(action);
    if (exists(after)) woken_.push_back(after);
    return true;
  }

  bool send(int rank, RankState& state, const Action& action) {
    const Action received = matching_message(action);
    ORTHANT_CHECK(owner(received.stage) >= 0, to_string(action), "no stage receives this message");
    double& free_s = state.stream_free_s[static_cast<size_t>(Stream::send)];
    const double start_s = std::max(state.now_s, free_s);
    free_s = start_s + durations_.link(rank, owner(received.stage), action.microbatch);
    add(rank, action, start_s, free_s);
    Message& message = messages_[received];
    message.began_s = start_s, message.sent_s = free_s;
    deliver(message, received.stage);
    return true;
  }

  /// Posts the receive. The row continues at once; the computation that reads the message waits for it.
  bool receive(int rank, RankState& state, const Action& action) {
    Message& message = messages_[action];
    message.posted_s = state.now_s;
    message.span = span_index(rank);
    add(rank, action, kUnknown_s, kUnknown_s);
    deliver(message, action.stage);
    return true;
  }

  void deliver(Message& message, int stage) {
    if (message.sent_s == kUnknown_s || message.posted_s == kUnknown_s) return;
    message.there_s = std::max(message.posted_s, message.sent_s);
    Span& span = timeline_.spans[message.span];
    span.start = std::max(message.posted_s, message.began_s);
    span.end = message.there_s;
    timeline_.makespan = std::max(timeline_.makespan, span.end);
    wake(stage);
  }

  bool collective(int rank, RankState& state, const Action& action) {
    double& free_s = state.stream_free_s[static_cast<size_t>(Stream::collective)];
    const double posted_s = action.kind == ActionKind::REDUCE ? complete_s(state, action) : state.now_s;
    const double start_s = std::max(posted_s, free_s);
    free_s = start_s + durations_.of(action);
    add(rank, action, start_s, free_s);
    if (action.kind == ActionKind::UNSHARD) unsharded_[static_cast<size_t>(action.stage)] = free_s;
    if (action.kind == ActionKind::REDUCE && !durations_.overlap_reduce) state.now_s = free_s;
    return true;
  }

  /// Time at which the gradients of the REDUCE are complete: while the last backward of its stage runs, or when the row
  /// reaches the Action.
  double complete_s(const RankState& state, const Action& action) const {
    const double fraction = durations_.reduction(action).complete_after;
    const auto& [start_s, end_s] = backward_[static_cast<size_t>(action.stage)];
    return fraction > 1 ? state.now_s : start_s + fraction * (end_s - start_s);
  }

  void add(int rank, const Action& action, double start_s, double end_s) {
    timeline_.spans[span_index(rank)] = {rank, facts(action.kind).stream, action, start_s, end_s};
    timeline_.makespan = std::max(timeline_.makespan, end_s);
  }

  /// Index in timeline_.spans of the rank's next Action.
  size_t span_index(int rank) const {
    return first_span_[static_cast<size_t>(rank)] + ranks_[static_cast<size_t>(rank)].next;
  }

  const Schedule& schedule_;
  const Durations& durations_;
  int stages_, microbatches_;
  PerResult<double> made_s_;     // end of each pass
  PerResult<Message> messages_;  // by the RECV
  Barriers barriers_;
  std::vector<double> unsharded_;  // end of the last UNSHARD, by stage
  std::vector<std::pair<double, double>> backward_;  // start and end of the last B or W, by stage
  std::vector<std::vector<double>> finalized_s_, stepped_s_;  // start of each FINALIZE, and of each STEP, by rank
  std::vector<RankState> ranks_;
  std::vector<size_t> first_span_;  // index of the first span, by rank
  std::vector<int> woken_;          // ranks that may be able to continue
  bool sends_ = false;
  Timeline timeline_;
};

}  // namespace

Durations Durations::of(double forward, double input, double weight) {
  return Durations{}
      .with(ActionKind::F, forward)
      .with(ActionKind::B, input + weight)
      .with(ActionKind::I, input)
      .with(ActionKind::W, weight);
}

Durations Durations::with(ActionKind kind, double duration) const {
  Durations out = *this;
  out.times[static_cast<size_t>(kind)] = duration;
  return out;
}

double Durations::of(const Action& action) const {
  if (!own.empty() && !is_message(action)) return own.at(action);
  const auto kind = static_cast<size_t>(action.kind);
  if (action.kind == ActionKind::REDUCE && !reductions.empty()) return reduction(action).duration;
  if (is_message(action)) return link_time;
  const double time = stage_times.empty() ? times[kind] : stage_times.at(static_cast<size_t>(action.stage))[kind];
  return time * scale(microbatch_of(action));
}

BucketReduction Durations::reduction(const Action& reduce) const {
  const auto stage = static_cast<size_t>(reduce.stage), bucket = static_cast<size_t>(reduce.microbatch);
  return reductions.empty() || reduce.microbatch < 0 ? BucketReduction() : reductions.at(stage).at(bucket);
}

double Durations::scale(int microbatch) const {
  return microbatch < 0 || microbatch_scale.empty() ? 1 : microbatch_scale.at(static_cast<size_t>(microbatch));
}

double Durations::barrier(const Action& action) const {
  const auto found = barrier_times.find(action.kind == ActionKind::I ? ActionKind::B : action.kind);
  return (found == barrier_times.end() ? barrier_time : found->second) * scale(microbatch_of(action));
}

double Durations::link(int from, int to, int microbatch) const {
  const auto found = link_times.find({from, to});
  return (found == link_times.end() ? link_time : found->second) * scale(microbatch);
}

Timeline simulate(const Schedule& schedule, const Durations& durations) {
  return Simulation(schedule, durations).run();
}

std::vector<double> peak_kept(const Schedule& schedule, const std::vector<Kept>& by_stage, double softmax) {
  ORTHANT_CHECK(static_cast<int>(by_stage.size()) >= stage_count(schedule), by_stage.size(), stage_count(schedule));
  std::vector<double> out;
  for (const auto& row : schedule.rows) {
    double now = 0, most = 0;
    for (const Action& action : row) {
      if (facts(action.kind).stream != Stream::compute) continue;
      const auto& [for_backward, for_weights] = by_stage[static_cast<size_t>(action.stage)];
      switch (action.kind) {
        case ActionKind::F: now += for_backward; break;
        case ActionKind::B: now -= for_backward; break;
        case ActionKind::I: now += for_weights - for_backward; break;
        case ActionKind::W: now -= for_weights; break;
        case ActionKind::S: now += softmax; break;
        case ActionKind::T:
        case ActionKind::TW: now -= softmax; break;
        default: break;
      }
      most = std::max(most, now);
    }
    out.push_back(most);
  }
  return out;
}

}  // namespace orthant
