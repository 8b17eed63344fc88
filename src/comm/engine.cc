// Implements the engine: how the rank's thread and the background thread share the work of advancing messages.
#include "comm/engine.h"

#include <ATen/Parallel.h>
#include <omp.h>
#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "base/clock.h"
#include "base/errors.h"
#include "comm/message_signature.h"
#include "launch/wait.h"

namespace orthant {
namespace {

// Time for which a thread polls without yielding. Two ranks may share a core even if there are enough cores. A peer
// that is going to answer has answered by then, or it needs this core.
constexpr double kAlone_s = 5e-6;
// Longest sleep in seconds. A lost wake-up costs this time, but does not hang the run.
constexpr double kSleepAtMost_s = 1;
// Longest time in one look() while messages move. After it, the caller checks deadlines and lost peers.
constexpr double kLookAtMost_s = 0.1;

Task failed(std::exception_ptr error) {
  std::rethrow_exception(std::move(error));
  co_return;
}

}  // namespace

Posted::~Posted() {
  // message_ is null after a move.
  if (message_ && !message_->ended) {
    message_->waiter = nullptr;
    engine_->dropped_.push_back(std::move(message_));
  }
}

void Posted::await_resume() const {
  if (message_->signature != expected_signature_ || message_->bytes != expected_bytes_) {
    throw UnexpectedMessage(
        fmt::format("rank {} sent {} where this rank expected {}: the ranks do not run the same program",
                    message_->peer, describe(MessageSignature::unpack(message_->signature), message_->bytes),
                    describe(MessageSignature::unpack(expected_signature_), expected_bytes_)));
  }
  if (!message_->error.empty()) throw CommError(message_->error);
}

// Held while the rank's thread advances messages. The background thread checks turns_ before each step and makes way.
class Engine::Turn {
 public:
  explicit Turn(Engine& engine) : engine_(engine), lock_((++engine.turns_, engine.mutex_)) { engine.take_over(); }
  ~Turn() {
    --engine_.turns_;
    engine_.hand_over();
  }
  std::unique_lock<std::mutex>& lock() { return lock_; }

 private:
  Engine& engine_;
  std::unique_lock<std::mutex> lock_;
};

Engine::Engine(const MakeTransport& make, EngineOptions options)
    : transport_(make(*this)),
      options_(options),
      takeover_delay_s_(options.away_s),
      wake_fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      timer_fd_(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK)) {
  if (wake_fd_ < 0 || timer_fd_ < 0) throw CommError(fmt::format("cannot create an event: {}", std::strerror(errno)));
  thread_ = std::thread([this] { run(); });
}

Engine::~Engine() {
  stop();
  transport_.reset();  // before the memory that it may write to
  close(wake_fd_);
  close(timer_fd_);
}

std::shared_ptr<Job> Engine::start(bool in_background, const std::function<Task(Job&)>& body,
                                   const Jobs& predecessors) {
  auto job = std::make_shared<Job>();
  job->in_background = in_background;
  Turn turn(*this);
  begin_after(job, body, predecessors);
  active_.push_back(job);
  in_background_ += in_background;
  if (job->begun && job->task.done()) finalize_jobs();
  return job;
}

int Engine::num_connections() {
  const Turn turn(*this);
  return transport_->num_connections();
}

void Engine::begin_after(const std::shared_ptr<Job>& job, const std::function<Task(Job&)>& body,
                         const Jobs& predecessors) {
  for (const auto& predecessor : predecessors) {
    if (predecessor->done) continue;
    predecessor->next.push_back([this, job, body, predecessors] { begin_after(job, body, predecessors); });
    return;
  }
  job->begun = true;
  if (predecessors.empty()) {
    job->task = body(*job);
    return;
  }
  try {
    for (const auto& predecessor : predecessors) predecessor->task.rethrow();
    job->task = body(*job);
  } catch (...) {
    job->task = failed(std::current_exception());
  }
}

Posted Engine::send(std::unique_ptr<Message> message) {
  Posted posted(this, std::move(message));
  transport_->send(*posted.message_);
  return posted;
}

Posted Engine::receive(std::unique_ptr<Message> message) {
  Posted posted(this, std::move(message));
  transport_->receive(*posted.message_);
  return posted;
}

void Engine::on_ended(Message& message) {
  if (message.waiter != nullptr) ready_.push_back(std::coroutine_handle<>::from_address(message.waiter));
}

// Advances the transport, then resumes every task whose message has arrived.
bool Engine::step() {
  bool moved = transport_->progress();
  for (; !ready_.empty(); moved = true) {
    const auto task = ready_.front();
    ready_.pop_front();
    task.resume();
  }
  if (moved) finalize_jobs();
  return moved;
}

void Engine::finalize_jobs() {
  std::vector<std::shared_ptr<Job>> ended;
  std::erase_if(active_, [&](const std::shared_ptr<Job>& job) {
    if (!job->begun || !job->task.done()) return false;
    if (job->task.failed()) {
      failed_.push_back(job);
    } else {
      job->staging.reset();  // all its messages have ended
    }
    in_background_ -= job->in_background;
    job->done = true;
    ended.push_back(job);
    return true;
  });
  bool again = false;
  for (const auto& job : ended) {
    for (const auto& begin_next : std::exchange(job->next, {})) begin_next(), again = true;
  }
  if (again) finalize_jobs();  // a job started here may have ended at once
}

// Steps until the job is done or nothing has moved for quiet_s; at most for kLookAtMost_s.
void Engine::look(const Job* job, double quiet_s) {
  const auto start = Clock::now();
  auto moved = start;
  while (!(job != nullptr && job->done) && !cancelled_) {
    if (step()) {
      moved = Clock::now();
      if (seconds_between(start, moved) >= kLookAtMost_s) return;
      continue;
    }
    const double waited_s = seconds_since(moved);
    if (waited_s >= quiet_s) return;
    if (!options_.cores_to_spare || waited_s > kAlone_s) sched_yield();
  }
}

void Engine::sleep(std::unique_lock<std::mutex>& lock, double seconds) {
  if (!transport_->arm()) return;
  pollfd fds[] = {{transport_->event_fd(), POLLIN, 0}, {wake_fd_, POLLIN, 0}};
  lock.unlock();
  ::poll(fds, 2, static_cast<int>(std::min(seconds, kSleepAtMost_s) * 1000) + 1);
  lock.lock();
}

bool Engine::poll(Job& job) {
  if (job.done) return true;
  Turn turn(*this);
  look(&job, options_.look_s);
  return job.done;
}

void Engine::wait(Job& job) {
  if (!job.done) {
    constexpr double kLongestGap_s = 10;  // far longer than one look and one sleep
    RunningTime waited(kLongestGap_s);
    Turn turn(*this);
    while (look(&job, options_.look_s), !job.done) {
      if (cancelled_) throw CommError("the wait was cancelled");
      const double left_s = options_.timeout_s - waited.seconds();
      if (const std::string lost = lost_peer(); !lost.empty()) throw CommError(lost);
      if (left_s < 0) {
        throw CommError(
            fmt::format("no progress from the peers within {} s; increase run.timeout_s if a rank may be "
                        "busy that long",
                        options_.timeout_s));
      }
      sleep(turn.lock(), left_s);
    }
  }
  job.task.rethrow();
}

void Engine::cancel() noexcept {
  cancelled_ = true;
  const uint64_t one = 1;
  (void)!write(wake_fd_, &one, sizeof one);
}

bool Engine::drain(double timeout_s) {
  const auto start = Clock::now();
  Turn turn(*this);
  while (look(nullptr, 0), !active_.empty() || !transport_->flushed()) {
    if (cancelled_ || seconds_since(start) > timeout_s) return false;
    sleep(turn.lock(), 0.001);
  }
  return true;
}

void Engine::progress() {
  Turn turn(*this);
  look(nullptr, 0);
}

void Engine::on_lost(const std::string& reason) {
  const std::lock_guard lock(lost_mutex_);
  if (lost_.empty()) lost_ = reason;
}

std::string Engine::lost_peer() const {
  const std::lock_guard lock(lost_mutex_);
  return lost_;
}

std::string Engine::find_lost_peer() {
  if (std::unique_lock lock(mutex_, std::try_to_lock); lock && turns_ == 0 && in_background_ == 0 && active_.empty())
    transport_->progress();
  return lost_peer();
}

std::shared_ptr<void> Engine::keep_advancing() {
  const auto change_by = [this](int number) {
    Turn turn(*this);
    in_background_ += number;
  };
  change_by(1);
  return {this, [change_by](Engine*) { change_by(-1); }};
}

void Engine::stop() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    set_timer(1e-9);
  }
  cancel();
  if (thread_.joinable()) thread_.join();
}

void Engine::set_timer(double seconds) {
  itimerspec when{};
  when.it_value.tv_nsec = static_cast<int64_t>(seconds * 1e9);
  // Set before the timer can expire, because the background thread then clears it.
  timer_set_ = true;
  timerfd_settime(timer_fd_, 0, &when, nullptr);
}

// The rank's thread returns to the engine. After a short absence, the next one may be twice as long. A rank of a
// pipeline starts messages in quick succession and then computes, so one long absence resets the limit.
void Engine::take_over() {
  if (in_background_ == 0) return;
  if (!on_duty_ && seconds_since(left_) < options_.away_s) {
    takeover_delay_s_ = std::min(2 * takeover_delay_s_, options_.away_at_most_s);
  } else if (takeover_delay_s_ > options_.away_s) {
    takeover_delay_s_ = options_.away_s;
    timer_set_ = false;  // the running timer may be set to a long time
  }
}

// The rank's thread leaves the engine while background jobs are in progress. A running timer is left alone, because
// setting or stopping a timer takes microseconds.
void Engine::hand_over() {
  if (in_background_ == 0 || turns_ > 0 || cancelled_) return;
  if (!on_duty_) {
    left_ = Clock::now();
    if (!timer_set_) set_timer(takeover_delay_s_);
    return;
  }
  // Re-arms the transport; otherwise its events would not wake the background thread.
  while (in_background_ > 0 && !transport_->arm()) step();
}

void Engine::run() {
  // Functions that Comm::reduce() calls on this thread must use one thread only. ATen sets the thread count to the
  // rank's own at its first use on a thread. So let it do that first, and then set 1.
  at::get_num_threads();
  omp_set_num_threads(1);
  while (!stop_) {
    pollfd timer{timer_fd_, POLLIN, 0};
    ::poll(&timer, 1, -1);
    uint64_t expirations = 0;
    if (read(timer_fd_, &expirations, sizeof expirations) > 0) timer_set_ = false;
    // Does not even take the lock, which would delay the rank's thread.
    if (turns_ > 0) continue;
    std::unique_lock lock(mutex_);
    if (in_background_ == 0 || turns_ > 0) continue;
    if (const double left_s = takeover_delay_s_ - seconds_since(left_); left_s > 0) {
      set_timer(std::max(left_s, 1e-6));
      continue;
    }
    on_duty_ = true;
    while (in_background_ > 0 && turns_ == 0 && !cancelled_ && !stop_) {
      if (!step()) sleep(lock, kSleepAtMost_s);
    }
    on_duty_ = false;
  }
}

}  // namespace orthant
