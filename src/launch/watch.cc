// The thread of a Watch: posts heartbeats, reads those of the other ranks, and decides who has failed.
#include "launch/watch.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "base/clock.h"
#include "base/errors.h"
#include "base/terminal_text.h"
#include "base/text.h"
#include "launch/process.h"
#include "launch/roll_call.h"

namespace orthant {
namespace {

// A rank is silent only after this many periods without a heartbeat: at one every 10 s, a single one proves nothing.
constexpr double kMissedBeats = 3;
// Delay after a process has ended. A launcher has its signal or exit code, and gets this time to report first.
constexpr double kLauncherFirst_s = 0.6;
constexpr const char* kClaim = "abort/claim";
constexpr const char* kRecord = "abort/record";

std::chrono::duration<double> seconds(double s) { return std::chrono::duration<double>(s); }
std::string alive_key(int rank) { return fmt::format("alive/{}", rank); }
constexpr const char* kNumLeft = "num-left";  // number of ranks that have left with a goodbye
constexpr const char* kAllLeft = "all-left";  // exists once all have
std::string left_key(int rank) { return fmt::format("left/{}", rank); }
std::string latest_key(int rank) { return fmt::format("watch/{}", rank); }  // value: the name of a rank's latest Watch
// The failure that a rank posted, escaped because any program that reaches the store can write there.
std::string read_failure(const Store& store, double timeout_s) {
  return escape_for_terminal(store.get(kRecord, timeout_s));
}
std::string readable_activity(const std::string& posted) {
  constexpr size_t kMostBytes = 300;
  return escape_for_terminal(posted, kMostBytes);
}
std::string during(const std::string& activity) {
  return activity.empty() ? "" : fmt::format(" (last reported activity: {})", activity);
}

}  // namespace

bool post_failure(const Store& store, const std::string& message) {
  if (store.add(kClaim, 1) != 1) return false;
  store.set(kRecord, message);
  return true;
}

bool has_failed(const Store& store) { return store.has(kClaim); }

std::vector<Heartbeat> read_heartbeats(const Store& store, const std::vector<int>& ranks) {
  std::vector<std::string> keys;
  for (const int rank : ranks) keys.push_back(alive_key(rank));
  std::vector<Heartbeat> heartbeats;
  for (const std::string& text : keys.empty() ? keys : store.get_all(keys)) {
    const auto lines = split(text, '\n');
    heartbeats.push_back(lines.size() < 3 ? Heartbeat() : Heartbeat{lines[1], readable_activity(lines[2])});
  }
  return heartbeats;
}

std::string last_activity(const Store& store, int rank) {
  constexpr double kThere_s = 1;
  if (!store.has(latest_key(rank))) return "";
  const Store newest = store.under(store.get(latest_key(rank), kThere_s));
  if (!newest.has(alive_key(rank))) return "";
  const auto lines = split(newest.get(alive_key(rank), kThere_s), '\n');
  return lines.size() < 3 ? "" : during(readable_activity(lines[2]));
}

Watch::Watch(const Store& store, const std::string& name, int rank, int world_size, double timeout_s,
             WatchOptions options)
    : record_(store.clone()),
      store_(record_.under(name)),
      rank_(rank),
      world_size_(world_size),
      options_(std::move(options)),
      identity_(options_.heartbeats ? process_identity() : "") {
  if (world_size_ == 1) return;
  beat();
  record_.set(latest_key(rank_), name);
  call_roll({.store = store_.under("start"),
             .rank = rank_,
             .world_size = world_size_,
             .timeout_s = timeout_s,
             .check = [this] {
               if (record_.has(kRecord)) throw CommError(read_failure(record_, 1));
             }});
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
  try {
    store_.set(left_key(rank_), "");
    if (store_.add(kNumLeft, 1) == world_size_) store_.set(kAllLeft, "");
  } catch (const CommError&) {  // the process that served the store is gone; no rank needs the goodbye
  }
}

void Watch::wait_for_others(double timeout_s) {
  constexpr double kPiece_s = 0.5;
  if (world_size_ == 1) return;
  const auto start = Clock::now();
  while (seconds_since(start) < timeout_s) {
    try {
      (void)store_.get(kAllLeft, std::min(kPiece_s, timeout_s));
      return;
    } catch (const CommError&) {
      try {
        if (store_.has(kAllLeft) || record_.has(kRecord)) return;
      } catch (const CommError&) {  // this rank's own store is gone: nothing to wait for
        return;
      }
    }
  }
}

RollCall Watch::roll_call(const Store& store, double timeout_s) const {
  return {.store = store, .rank = rank_, .world_size = world_size_, .timeout_s = timeout_s, .check = [this] {
            if (const auto known = failure()) throw CommError(*known);
          }};
}

void Watch::set_activity(std::string activity) {
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

bool Watch::abort(const std::string& message) {
  {
    const std::lock_guard lock(mutex_);
    if (must_report_) return *must_report_;
    if (failure_) return *(must_report_ = false);
    must_report_ = true;
    failure_ = message;
  }
  bool first = true;
  if (world_size_ > 1) {
    try {
      first = post_failure(record_.clone(), message);
    } catch (const CommError&) {  // without a store there is no record: each rank reports for itself
    }
  }
  const std::lock_guard lock(mutex_);
  must_report_ = first;
  return first;
}

void Watch::abort_and_end(const std::string& message) { fail(message, abort(message)); }

std::string Watch::wait_for_cause(double patience_s) {
  std::unique_lock lock(mutex_);
  suspicious_ = true;
  changed_.wait_for(lock, seconds(patience_s), [&] { return failure_.has_value(); });
  return failure_ ? *failure_ : others();
}

std::string Watch::others() const {
  std::vector<std::string> lines;
  for (const auto& [rank, peer] : peers_) {
    if (peer.left) {
      lines.push_back(fmt::format("rank {} has ended its run", rank));
    } else if (!peer.activity.empty()) {
      lines.push_back(fmt::format("activity of rank {}: {}", rank, peer.activity));
    }
  }
  return join(lines, "; ");
}

void Watch::run() {
  auto last = Clock::now();
  double failed_s = 0, next_s = options_.period_s;
  for (;;) {
    next_s = processes_.wait(next_s) ? std::min(options_.period_s, kLauncherFirst_s) : options_.period_s;
    {
      const std::lock_guard lock(mutex_);
      if (stop_) return;
    }
    const double elapsed_s = seconds_since(last);
    last = Clock::now();
    if (failure()) {
      // The failure is known already, from this rank's own abort() or from the code below. The main thread gets leave_s
      // to leave.
      if (called_ || (failed_s += elapsed_s) < options_.leave_s) continue;
      fail(*failure(), false);
      continue;
    }
    try {
      tick(elapsed_s);
      ++answered_periods_;
    } catch (const ForgedValue& error) {
      abort_and_end(fmt::format("rank {}: {}", rank_, error.what()));
    } catch (const std::exception& error) {
      // Without the store no rank can claim to report first. Rank 0 reports or, if rank 0 served the store, rank 1.
      const std::string dead = find_dead_rank();
      fail(!dead.empty() ? dead
                         : fmt::format("rank {}: {} (rank 0 or the launcher, which serves it, has died or cannot be "
                                       "reached)",
                                       rank_, error.what()),
           rank_ <= 1);
    }
  }
}

void Watch::tick(double elapsed_s) {
  if (record_.has(kRecord)) return fail(read_failure(record_, 1), false);
  // A pause of this thread counts as at most two periods: the other ranks have not been still because of it.
  if (options_.on_tick) options_.on_tick(std::min(elapsed_s, 2 * options_.period_s), store_);
  if (!options_.heartbeats) return;
  since_beat_s_ += elapsed_s;
  if (since_beat_s_ >= options_.beat_s - options_.period_s / 2) beat();
  look_at_peers(elapsed_s);
}

void Watch::beat() {
  since_beat_s_ = 0;
  store_.set(alive_key(rank_), fmt::format("{}\n{}\n{}", identity_, ++beats_, activity()));
}

// The rank before this one in the ring that has not left; all others once an operation of this rank has failed.
std::vector<int> Watch::watched_ranks() const {
  const std::lock_guard lock(mutex_);
  std::vector<int> ranks;
  for (int distance = 1; distance < world_size_; ++distance) {
    const int rank = (rank_ - distance + world_size_) % world_size_;
    const auto known = peers_.find(rank);
    if (known != peers_.end() && known->second.left) continue;
    ranks.push_back(rank);
    if (!suspicious_) break;
  }
  return ranks;
}

void Watch::look_at_peers(double elapsed_s) {
  const std::vector<int> ranks = watched_ranks();
  std::vector<std::string> keys;
  for (const int rank : ranks) keys.push_back(alive_key(rank));
  if (keys.empty()) return;
  const auto beats = store_.get_all(keys);
  std::string problem;
  for (size_t i = 0; i < ranks.size(); ++i) {
    const int r = ranks[i];
    const auto lines = split(beats[i], '\n');
    std::unique_lock lock(mutex_);
    Peer& peer = peers_[r];
    if (lines.size() < 3) continue;
    // A pause of this thread (a stopped or swapped process) must not count as silence of the others. So count at most
    // two periods.
    peer.still_s = peer.beat == lines[1] ? peer.still_s + std::min(elapsed_s, 2 * options_.period_s) : 0;
    peer.identity = lines[0], peer.beat = lines[1], peer.activity = readable_activity(lines[2]);
    processes_.watch(peer.identity);
    problem = describe_failure(r, peer);
    const std::string warning = problem.empty() ? describe_silence(r, peer) : "";
    lock.unlock();
    if (!warning.empty()) options_.on_warning(warning);
    if (problem.empty()) continue;
    const bool left = store_.has(left_key(r));
    lock.lock();
    if (!left) break;
    peer.left = true;
    problem.clear();
  }
  if (problem.empty()) return;
  const bool first = post_failure(record_, problem);
  fail(first ? problem : read_failure(record_, 2), first);
}

std::string Watch::describe_failure(int rank, Peer& peer) const {
  const ProcessState state = process_state(peer.identity);
  if (state == ProcessState::gone) {
    if (++peer.gone_ticks < 2) return "";
    return fmt::format("rank {} died: its process {} has ended{}", rank, pid_of(peer.identity), during(peer.activity));
  }
  const double beats_s = kMissedBeats * options_.beat_s;
  double patience_s = std::max(options_.silence_s, beats_s);
  // A process that is seen to be stopped is not a slow machine, for which the longer limit exists.
  if (state == ProcessState::stopped) patience_s = std::min(patience_s, std::max(options_.suspicion_s, beats_s));
  if (suspicious_ && state != ProcessState::running) patience_s = std::min(patience_s, options_.suspicion_s);
  if (peer.still_s < patience_s) return "";
  return fmt::format(
      "rank {} has sent no heartbeat for {:.0f} s{}{}", rank, peer.still_s,
      state == ProcessState::stopped ? fmt::format(": its process {} is stopped", pid_of(peer.identity)) : "",
      during(peer.activity));
}

// A warning if the rank has become silent, or sends heartbeats again after such a warning; else empty.
std::string Watch::describe_silence(int rank, Peer& peer) const {
  if (!options_.on_warning || peer.left || kMissedBeats * options_.beat_s > options_.warn_s) return "";
  const bool silent = peer.still_s >= options_.warn_s;
  if (silent == peer.warned) return "";
  peer.warned = silent;
  if (!silent) return fmt::format("rank {} sends heartbeats again", rank);
  return fmt::format(
      "rank {} has sent no heartbeat for {:.1f} s: its host may be frozen or cut off{}. The run stops "
      "after {:g} s of silence",
      rank, peer.still_s, during(peer.activity), options_.silence_s);
}

// Finds the dead rank after the store is gone, together with the rank that served it.
std::string Watch::find_dead_rank() const {
  const std::lock_guard lock(mutex_);
  for (const auto& [rank, peer] : peers_) {
    if (process_state(peer.identity) != ProcessState::gone) continue;
    return fmt::format("rank {} died: its process {} has ended, and with it the store that it served", rank,
                       pid_of(peer.identity));
  }
  return "";
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
