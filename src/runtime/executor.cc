// The loop over a row. For each computation it posts the receives that follow, waits for the input, computes, and
// stores the result for its SEND.
#include "runtime/executor.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <limits>

#include "base/errors.h"
#include "schedule/posted_receives.h"
#include "schedule/results.h"

namespace orthant {
namespace {

// Maximum number of incomplete sends in a row without backwards. Nothing comes back to such a rank, so it would run
// ahead of later stages, and hold outputs that they have not read. In a row with backwards, the order of the row limits
// this, and the memory plan counts it.
constexpr size_t kAhead = 2;

bool has_backwards(std::span<const Action> row) {
  return std::ranges::any_of(
      row, [](const Action& action) { return action.kind == ActionKind::B || action.kind == ActionKind::I; });
}

}  // namespace

Executor::Executor(StageTable table, StageWork work, Comm& comm)
    : comm_(comm), table_(std::move(table)), work_(std::move(work)), messages_(comm, table_.owners) {}

void Executor::run(std::span<const Action> row, const std::function<void(const Action&, size_t)>& announce) {
  intervals_.clear();
  has_backwards_ = has_backwards(row);
  messages_.limit_incomplete_sends(has_backwards_ ? std::numeric_limits<size_t>::max() : kAhead);
  const std::vector<PostedReceive> receives = posted_receives(row);
  auto next = receives.begin();  // the receive to post next
  for (size_t index = 0; index < row.size();) {
    if (announce) announce(row[index], index);
    intervals_.push_back({Clock::now(), {}});
    const Stream stream = facts(row[index].kind).stream;
    if (row[index].kind == ActionKind::FINALIZE) {
      if (work_.finalize(row[index])) {
        intervals_.clear();
        next = receives.begin(), index = 0;
        continue;
      }
      intervals_.back().start = Clock::now();
    }
    for (; next != receives.end() && next->posted_at <= static_cast<int>(index); ++next)
      receive(row[static_cast<size_t>(next->index)]);
    if (stream == Stream::compute && row[index].kind != ActionKind::FINALIZE) {
      // Lets small messages advance. The next chance may come only after a whole pass, while a peer waits for its send
      // completion.
      comm_.progress();
    }
    if (stream != Stream::receive) carry_out(row[index], index);
    intervals_.back().end = Clock::now();
    ++index;
  }
  messages_.finish();
}

void Executor::carry_out(const Action& action, size_t index) {
  switch (action.kind) {
    case ActionKind::F:
    case ActionKind::B:
    case ActionKind::I: return compute(action);
    case ActionKind::W:
      if (has_sequences(action)) work_.weight_gradients(action);
      return;
    case ActionKind::SEND_F:
    case ActionKind::SEND_B: return send(action, index);
    case ActionKind::REDUCE: return work_.reduce(action);
    case ActionKind::STEP: return step(action);
    case ActionKind::FINALIZE: return;
    case ActionKind::UNSHARD:
      if (work_.unshard) return work_.unshard(action.stage);
      break;
    case ActionKind::RESHARD:
      if (work_.reshard) return work_.reshard(action.stage);
      break;
    default:
      if (is_vocabulary(action) && work_.vocabulary) return vocabulary(action);
  }
  throw LogicError("the schedule asks for an Action that this runtime does not carry out: " + to_string(action));
}

// In its middle, a STEP waits for the statistics of other ranks. Shifting the start of its interval by that time
// excludes the wait from its length.
void Executor::step(const Action& action) {
  const double waited_s = comm_.exposed_wait_s();
  work_.step(action);
  intervals_.back().start +=
      std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(comm_.exposed_wait_s() - waited_s));
}

void Executor::send(const Action& action, size_t index) {
  if (has_backwards_) messages_.complete_sends(static_cast<int>(index));
  if (!has_sequences(action)) return;
  const bool known = has_backwards_ && table_.send_completions.has(action);
  messages_.send(action, known ? table_.send_completions[action] : std::numeric_limits<int>::max());
}

void Executor::vocabulary(const Action& action) {
  if (!has_sequences(action)) return;
  wait_for(action);
  work_.vocabulary(action);
}

void Executor::wait_for(const Action& action) {
  if (!work_.wait_for) return;
  work_.wait_for(action);
  intervals_.back().start = Clock::now();
}

// A microbatch without sequences is skipped: it has no computation, gradient or message.
void Executor::compute(const Action& action) {
  if (!has_sequences(action)) return;
  const bool forward = action.kind == ActionKind::F;
  at::Tensor read = take(action);
  wait_for(action);
  at::Tensor made = (forward ? work_.forward : work_.backward)(action, std::move(read));
  if (made.defined()) messages_.keep(send_of(action), std::move(made));
}

at::Tensor Executor::take(const Action& action) {
  const bool forward = action.kind == ActionKind::F;
  if (action.stage == (forward ? 0 : static_cast<int>(table_.owners.size()) - 1)) return {};
  at::Tensor taken = messages_.take(recv_of(action));
  intervals_.back().start = Clock::now();
  return taken;
}

void Executor::receive(const Action& action) {
  if (has_sequences(action)) {
    messages_.receive(action, at::empty(table_.stream_shape(action.microbatch), table_.stream));
  }
}

}  // namespace orthant
