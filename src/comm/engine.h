// Engine: advances one rank's Transport and the Tasks that wait for its messages. The rank's own thread does this while
// it starts operations and waits for them. While the rank computes, the engine's background thread takes over and
// sleeps until the transport has an event.
//
// Costs depend on the number of jobs and messages in progress, not on the number of ranks. Each rank has one background
// thread.
#pragma once

#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "comm/task.h"
#include "comm/transport.h"
#include "mesh/collective.h"

namespace orthant {

class Engine;

/// A Task in progress, the bytes of its messages, and the staging memory of its messages.
struct Job {
  std::shared_ptr<void> staging;
  Task task;
  /// True if the job advances while the rank computes. A job that needs no progress beyond the messages posted at its
  /// start can do without.
  bool in_background = false;
  bool begun = false;
  std::vector<std::function<void()>> next;  // jobs that begin when this one is done
  Moved moved_bytes;
  std::atomic<bool> done = false;
};

using Jobs = std::vector<std::shared_ptr<Job>>;

/// A message in progress, which a Task can await. If a Posted is destroyed early, the message continues and the engine
/// keeps it.
class [[nodiscard]] Posted {
 public:
  Posted(Posted&&) noexcept = default;
  ~Posted();

  bool await_ready() const noexcept { return message_->ended; }
  void await_suspend(std::coroutine_handle<> task) noexcept { message_->waiter = task.address(); }
  /// Throws CommError if the peer sent something other than expected (both are named), or if the transport failed.
  void await_resume() const;

 private:
  friend class Engine;
  // Built before the message is posted: posting may complete it at once and overwrite its signature and bytes.
  Posted(Engine* engine, std::unique_ptr<Message> message)
      : engine_(engine),
        expected_signature_(message->signature),
        expected_bytes_(message->bytes),
        message_(std::move(message)) {}

  Engine* engine_;
  uint32_t expected_signature_;
  int64_t expected_bytes_;
  std::unique_ptr<Message> message_;
};

/// Thrown for a message of another operation than expected.
struct UnexpectedMessage : CommError {
  using CommError::CommError;
};

struct EngineOptions {
  double timeout_s = 300;
  /// How long a waiting thread polls before it sleeps. If ranks share cores, it yields the core while it polls.
  double look_s = 50e-6;
  bool cores_to_spare = false;
  /// The background thread takes over when the rank's thread has been away for away_s. The delay doubles, up to
  /// away_at_most_s, each time the rank's thread returns within away_s. A longer absence resets it. Setting a timer
  /// costs as much as an operation of 64 KiB.
  double away_s = 200e-6, away_at_most_s = 10e-3;
};

class Engine final : private MessageSink {
 public:
  using MakeTransport = std::function<std::unique_ptr<Transport>(MessageSink&)>;
  Engine(const MakeTransport& make, EngineOptions options);
  ~Engine();

  const Transport& transport() const { return *transport_; }
  /// Number of connections of the transport. It may be called while messages are in progress.
  int num_connections();

  /// Starts the task that `body` makes, now or once all predecessors are done. It runs to its first co_await. If there
  /// are predecessors, `body` runs on the thread that completes the last of them, and no message advances meanwhile. An
  /// exception from `body`, or an error of a predecessor, becomes the error of the new job.
  std::shared_ptr<Job> start(bool in_background, const std::function<Task(Job&)>& body, const Jobs& predecessors = {});
  /// Post a message of a task. Only tasks may call these.
  Posted send(std::unique_ptr<Message> message);
  Posted receive(std::unique_ptr<Message> message);

  /// Advances messages until the job is done, nothing has moved for look_s, or 0.1 s have passed. True if the job is
  /// done.
  bool poll(Job& job);
  /// Advances messages, and sleeps in between, until the job is done. Throws the task's error. Throws CommError after
  /// timeout_s, at cancel(), and if the transport has lost a peer.
  void wait(Job& job);
  /// May be called from any thread: makes wait() throw, now and in future.
  void cancel() noexcept;

  /// Advances messages until every job is done and every sent message has left this rank. False after timeout_s or
  /// cancel().
  bool drain(double timeout_s);
  /// Processes events that are ready now, without waiting.
  void progress();
  /// The reason why a peer cannot be reached any more. Empty while none is known to be lost. Any thread may call it.
  std::string lost_peer() const;
  /// The same, after processing events if nothing else does so at the moment: a transport may detect the loss only
  /// then.
  std::string find_lost_peer();
  /// Until the result is destroyed, the background thread advances messages although no job needs it. The engine must
  /// outlive the result.
  [[nodiscard]] std::shared_ptr<void> keep_advancing();
  /// Stops the background thread. Operations in progress may still write to their memory. Therefore, unless drain()
  /// returned true, the engine must never be destroyed.
  void stop();

 private:
  class Turn;
  friend class Posted;

  void begin_after(const std::shared_ptr<Job>& job, const std::function<Task(Job&)>& body, const Jobs& predecessors);
  void on_ended(Message& message) override;
  void on_lost(const std::string& reason) override;
  bool step();
  void finalize_jobs();
  void look(const Job* job, double quiet_s);
  void sleep(std::unique_lock<std::mutex>& lock, double seconds);
  void set_timer(double seconds);
  void take_over();
  void hand_over();
  void run();

  mutable std::mutex lost_mutex_;
  std::string lost_;  // guarded by lost_mutex_

  std::mutex mutex_;  // guards all members below that are not atomic
  std::unique_ptr<Transport> transport_;
  EngineOptions options_;
  std::vector<std::unique_ptr<Message>> dropped_;  // outlives the jobs, whose tasks may destroy a Posted early
  std::vector<std::shared_ptr<Job>> active_;
  std::vector<std::shared_ptr<Job>> failed_;  // kept, because their remaining messages may still arrive
  int in_background_ = 0;  // reasons for the background thread to advance messages: jobs, and keep_advancing()
  std::deque<std::coroutine_handle<>> ready_;

  std::atomic<int> turns_ = 0;  // threads of the rank that hold or request the engine
  std::atomic<bool> cancelled_ = false;
  std::atomic<bool> stop_ = false;
  bool on_duty_ = false;  // the background thread is advancing messages
  /// The timer is running. When it expires, takeover_delay_s_ is compared with the time since `left_`.
  std::atomic<bool> timer_set_ = false;
  /// Time that the rank's thread may be away before the background thread takes over.
  double takeover_delay_s_;
  /// When the rank's thread last stopped advancing messages.
  std::chrono::steady_clock::time_point left_;
  int wake_fd_ = -1, timer_fd_ = -1;
  std::thread thread_;
};

}  // namespace orthant
