// The thread of a Watch: shows a heartbeat, looks at the rank before this one, and asks the store if this rank leads.
#include "launch/watch.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <set>

#include "base/clock.h"
#include "base/errors.h"
#include "base/terminal_text.h"
#include "base/text.h"
#include "launch/background.h"
#include "launch/process.h"
#include "launch/roll_call.h"
#include "launch/wait.h"

namespace orthant {
namespace {

// Delay after a process has ended. A launcher has its signal or exit code, and gets this time to report first.
constexpr double kLauncherFirst_s = 0.5;
constexpr const char* kNumLeft = "num-left";  // number of ranks that have left with a goodbye
constexpr const char* kAllLeft = "all-left";  // exists once all have

std::chrono::duration<double> seconds(double s) { return std::chrono::duration<double>(s); }

// The different numbers in a text, in ascending order. Ignores all else.
std::vector<int> numbers_in(const std::string& text) {
  std::set<int> numbers;
  for (const auto& word : split(text, ' ')) {
    int number = 0;
    if (std::from_chars(word.data(), word.data() + word.size(), number).ec == std::errc()) numbers.insert(number);
  }
  return {numbers.begin(), numbers.end()};
}

// The different numbers in some texts, as one text.
std::string join_numbers(const std::vector<std::string>& texts) {
  std::vector<std::string> different;
  for (const int number : numbers_in(join(texts, " "))) different.push_back(fmt::format("{}", number));
  return join(different, " ");
}

}  // namespace

std::string last_activity(const HostBoard& board, int rank) {
  const int position = board.find(rank);
  return position < 0 ? "" : during(readable_activity(board.activity(position)));
}

Watch::Watch(const Store& store, const std::string& name, int rank, int world_size, double timeout_s,
             WatchOptions options)
    : record_(store),
      store_(store.under(name)),
      rank_(rank),
      world_size_(world_size),
      options_(std::move(options)),
      board_(world_size == 1 ? nullptr : options_.board),
      position_(board_ ? board_->enter(store, rank, process_identity()) : 0) {
  if (world_size_ == 1) return;
  const RollCall call{.store = store_.under("start"),
                      .rank = rank_,
                      .world_size = world_size_,
                      .timeout_s = timeout_s,
                      .check = [this] {
                        if (board_) board_->beat(position_);  // for ranks still in the Watch before this one
                        if (const auto posted = find_failure(record_)) throw CommError(*posted);
                      }};
  hosts_ = numbers_in(call_roll(call, board_ ? fmt::format("{}", board_->host()) : "", join_numbers));
  thread_ = std::thread([this] { run(); });
}

Watch::~Watch() { leave(false); }

void Watch::leave(bool goodbye) {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  processes_.wake();
  if (!thread_.joinable()) return;
  thread_.join();
  if (!goodbye) return;
  // The heartbeat of the host must not come after its goodbye.
  constexpr double kAnswer_s = 5;
  if (answer_.valid()) answer_.wait_for(seconds(kAnswer_s));
  try {
    if (board_ && board_->leave(position_)) HostLeader::leave(record_, *board_);
    if (store_.add(kNumLeft, 1) == world_size_) store_.set(kAllLeft, "");
  } catch (const CommError&) {  // the process that served the store is gone; no rank needs the goodbye
  }
}

void Watch::wait_for_others(double timeout_s) {
  if (world_size_ == 1) return;
  try {
    const auto is_over = [this] { return has_failed(record_); };
    (void)await_key(store_, kAllLeft, {.timeout_s = timeout_s, .longest_piece_s = 0.5, .is_over = is_over});
  } catch (const CommError&) {  // this rank's own store is gone: nothing to wait for
  }
}

RollCall Watch::roll_call(const Store& store, double timeout_s) const {
  return {.store = store, .rank = rank_, .world_size = world_size_, .timeout_s = timeout_s, .check = [this] {
            if (const auto known = failure()) throw CommError(*known);
          }};
}

void Watch::set_activity(std::string activity) {
  if (board_) board_->set_activity(position_, activity);
  const std::lock_guard lock(mutex_);
  activity_ = std::move(activity);
}

std::string Watch::activity() const {
  const std::lock_guard lock(mutex_);
  return activity_;
}

std::optional<std::string> Watch::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

// Whether this rank is the one that reports the failure, as far as abort() has found out.
bool Watch::must_report() const {
  const std::lock_guard lock(mutex_);
  return must_report_.value_or(false);
}

bool Watch::abort(const std::string& message) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !is_posting_; });
  if (must_report_) return *must_report_;
  if (failure_) return *(must_report_ = false);
  failure_ = message;
  is_posting_ = true;
  changed_.notify_all();
  lock.unlock();
  const bool is_first = post(message).is_first;
  lock.lock();
  must_report_ = is_first;
  is_posting_ = false;
  changed_.notify_all();
  return is_first;
}

void Watch::abort_and_end(const std::string& message) { fail(message, abort(message)); }

void Watch::suspect() {
  if (board_) board_->set_suspicious();
}

std::string Watch::wait_for_cause(double timeout_s) {
  suspect();
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, seconds(timeout_s), [&] { return failure_.has_value(); });
  return failure_ ? *failure_ : others();
}

// The activities of the other ranks of this host.
std::string Watch::others() const {
  constexpr int kMostNamed = 8;
  std::vector<std::string> lines;
  for (int position = 0; board_ && position < board_->num_ranks(); ++position) {
    if (position == position_ || lines.size() == kMostNamed) continue;
    const std::string activity = readable_activity(board_->activity(position));
    if (!board_->is_watched(position)) {
      lines.push_back(fmt::format("rank {} has ended its run", board_->rank(position)));
    } else if (!activity.empty()) {
      lines.push_back(fmt::format("activity of rank {}: {}", board_->rank(position), activity));
    }
  }
  return join(lines, "; ");
}

void Watch::run() {
  const double board_period_s = board_ ? std::min(options_.board_period_s, options_.period_s) : options_.period_s;
  auto last = Clock::now();
  double failed_s = 0;
  since_beat_s_ = options_.heartbeat.period_s, since_asked_s_ = options_.period_s;
  for (;;) {
    if (processes_.wait(board_period_s)) has_ended_ = true;
    {
      const std::lock_guard lock(mutex_);
      if (stop_) return;
    }
    // A pause of this thread, as in a stopped or swapped process, must not count as silence of others.
    const double elapsed_s = std::min(seconds_since(last), 2 * options_.period_s);
    last = Clock::now();
    if (failure()) {
      // The failure is known already, from this rank's own abort() or from the code below. The main thread gets leave_s
      // to leave.
      if (called_ || (failed_s += elapsed_s) < options_.leave_s) continue;
      fail(*failure(), must_report());
      continue;
    }
    try {
      tick(elapsed_s);
    } catch (const ForgedValue& error) {
      abort_and_end(fmt::format("rank {}: {}", rank_, error.what()));
    } catch (const std::exception& error) {
      report_lost_store(error.what());
    }
  }
}

void Watch::tick(double elapsed_s) {
  if (options_.on_tick) options_.on_tick(elapsed_s);
  if (board_) {
    if (const auto posted = board_->failure()) return fail(*posted, false);
    since_beat_s_ += elapsed_s;
    if (since_beat_s_ >= options_.heartbeat.period_s - options_.board_period_s / 2) {
      board_->beat(position_);
      since_beat_s_ = 0;
    }
    look_at_previous_rank(elapsed_s);
    if (failure() || !board_->lead(position_)) return;
  }
  since_asked_s_ += elapsed_s;
  ask_store();
}

// Asks if a request is due, and handles its answer at a later look, so that a store that does not answer keeps this
// thread from nothing.
void Watch::ask_store() {
  const HeartbeatLimits& limits = options_.heartbeat;
  if (answer_.valid()) {
    const bool has_answered = is_ready(answer_);
    warn_of(store_is_silent_.change(!has_answered && since_asked_s_ >= limits.warn_after_s, [&](bool silent) {
      const std::string who = fmt::format("rank {}: the {}", rank_, record_.name());
      if (!silent) return who + " answers again";
      return fmt::format(
          "{} has not answered for {:.1f} s: the host of rank 0 or of the launcher, which serves it, may "
          "be frozen or cut off. The run stops after {:g} s of silence",
          who, since_asked_s_, limits.timeout_s);
    }));
    if (has_answered) return handle(answer_.get());
    if (since_asked_s_ < std::max(limits.timeout_s, options_.period_s)) return;
    throw CommError(fmt::format("{} has not answered for {:.0f} s", record_.name(), since_asked_s_));
  }
  if (since_asked_s_ < options_.period_s - options_.board_period_s / 2) return;
  // A store that did not answer for long must not count as silence of the hosts.
  const double elapsed_s = std::min(std::exchange(since_asked_s_, 0), 2 * options_.period_s);
  if (!leader_) leader_ = std::make_shared<HostLeader>(record_, board_, hosts_, rank_, limits);
  if (!board_) return handle(leader_->inquire(elapsed_s));  // the store of this process always answers
  answer_ = run_in_background([leader = leader_, elapsed_s] { return leader->inquire(elapsed_s); });
}

void Watch::warn_of(const std::string& change) {
  if (!change.empty() && options_.on_warning) options_.on_warning(change);
}

void Watch::handle(const Answer& answer) {
  for (const std::string& warning : answer.warnings) warn_of(warning);
  if (!answer.problem.empty()) report(answer.problem);
  if (!answer.posted) return;
  if (board_) board_->post_failure(*answer.posted);
  fail(*answer.posted, false);
}

// Looks at the rank before this one on the host. Ranks that have ended their run are skipped.
void Watch::look_at_previous_rank(double elapsed_s) {
  const int ranks = board_->num_ranks();
  int previous = -1;
  for (int distance = 1; distance < ranks && previous < 0; ++distance) {
    const int position = (position_ - distance + ranks) % ranks;
    if (board_->is_watched(position)) previous = position;
  }
  if (previous != previous_) {
    previous_ = previous, previous_heartbeat_ = {}, previous_is_silent_ = {}, gone_s_ = 0;
    if (previous >= 0) processes_.watch(board_->identity(previous));
    has_ended_ = true;  // perhaps before this rank watched it
  }
  if (previous < 0) return;
  if (const std::string problem = describe_failure(elapsed_s); !problem.empty()) report(problem);
}

std::string Watch::describe_failure(double elapsed_s) {
  previous_heartbeat_.see(board_->heartbeat(previous_), elapsed_s);
  const HeartbeatLimits& limits = options_.heartbeat;
  const double unchanged_s = previous_heartbeat_.unchanged_s(), beats_s = kMissedBeats * limits.period_s;
  const std::string identity = board_->identity(previous_);
  const std::string activity = during(readable_activity(board_->activity(previous_)));
  const int rank = board_->rank(previous_), pid = pid_of(identity);
  const auto warn_if = [&](bool is_silent) {
    warn_of(previous_is_silent_.change(is_silent, [&](bool silent) {
      if (!silent) return fmt::format("rank {} sends heartbeats again", rank);
      return fmt::format(
          "rank {} has sent no heartbeat for {:.1f} s, although its process {} runs{}. The run stops "
          "after {:g} s of silence",
          rank, unchanged_s, pid, activity, limits.timeout_s);
    }));
  };
  // The state of a process that shows heartbeats is not read, because that takes longer than all else here.
  if (!has_ended_ && unchanged_s < std::min(beats_s, limits.timeout_s)) return warn_if(false), "";
  const ProcessState state = process_state(identity);
  if (state == ProcessState::gone) {
    gone_s_ += elapsed_s;
    if (gone_s_ < kLauncherFirst_s) return "";
    return fmt::format("rank {} died: its process {} has ended{}", rank, pid, activity);
  }
  has_ended_ = false;
  double timeout_s = std::max(limits.timeout_s, beats_s);
  // A process that is seen to be stopped is not a slow machine, for which the longer limit exists.
  if (state == ProcessState::stopped) {
    timeout_s = std::min(timeout_s, std::max(limits.suspected_timeout_s, beats_s));
  }
  if (unchanged_s < timeout_s) {
    if (unchanged_s >= std::max(limits.warn_after_s, beats_s)) warn_if(true);
    return "";
  }
  return fmt::format("rank {} has sent no heartbeat for {:.0f} s{}{}", rank, unchanged_s,
                     state == ProcessState::stopped ? fmt::format(": its process {} is stopped", pid) : "", activity);
}

// Finds a dead rank of this host after the store is gone, together with the rank that served it.
std::string Watch::find_dead_rank() const {
  for (int position = 0; board_ && position < board_->num_ranks(); ++position) {
    const std::string identity = board_->identity(position);
    if (!board_->is_watched(position) || process_state(identity) != ProcessState::gone) continue;
    return fmt::format("rank {} died: its process {} has ended, and with it the store that it served",
                       board_->rank(position), pid_of(identity));
  }
  return "";
}

// Claims in the store that this rank reports the failure. Returns the message that holds, and whether this rank is the
// one that reports it. Empty if the store does not answer in time.
std::optional<Watch::Claim> Watch::claim_report(const std::string& message) const {
  constexpr double kPatience_s = 1.5;
  auto posted = run_in_background([record = record_, message] {
    const Store store = record.clone();
    if (post_failure(store, message)) return Claim{message, true};
    return Claim{find_failure(store).value_or(message), false};
  });
  if (posted.wait_for(seconds(kPatience_s)) != std::future_status::ready) return std::nullopt;
  try {
    return posted.get();
  } catch (const CommError&) {
    return std::nullopt;
  }
}

// Posts a failure in the store and on the board. Without a store, each host reports for itself.
Watch::Claim Watch::post(const std::string& message) const {
  const std::optional<Claim> claim = world_size_ > 1 ? claim_report(message) : Claim{message, true};
  const std::string cause = claim ? claim->message : message;
  const bool first_on_host = !board_ || board_->post_failure(cause);
  return {cause, claim ? claim->is_first : first_on_host};
}

// Reports the failure of another rank.
void Watch::report(const std::string& message) {
  const Claim claim = post(message);
  fail(claim.message, claim.is_first);
}

void Watch::report_lost_store(const std::string& reason) {
  const std::string dead = find_dead_rank();
  const std::string message = !dead.empty()
                                  ? dead
                                  : fmt::format(
                                        "rank {}: {} (rank 0 or the launcher, which serves it, has died or cannot be "
                                        "reached)",
                                        rank_, reason);
  fail(message, board_ ? board_->post_failure(message) : rank_ <= 1);
}

void Watch::fail(const std::string& message, bool must_report) {
  {
    const std::lock_guard lock(mutex_);
    if (!failure_) failure_ = message;
    if (called_) return;
    called_ = true;
  }
  changed_.notify_all();
  if (options_.on_failure) options_.on_failure(message, must_report);
}

}  // namespace orthant
