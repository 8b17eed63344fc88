// Engine: drives one rank's Transport and the Tasks that wait for its messages. The rank's own thread does so while it
// starts operations and waits for them. When it has gone to compute, a thread of the engine's takes over, which sleeps
// until the transport has news.
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

namespace orthant {

class Engine;

/// A Task under way, what it has sent, and the memory that its messages use beside the caller's tensors.
struct Job {
  std::shared_ptr<void> staging;
  Task task;
  /// Goes on while the rank computes. What ends with the messages posted at its start need not.
  bool in_background = false;
  bool begun = false;
  std::vector<std::function<void()>> next;  // jobs that begin when this one is done
  int64_t sent_bytes = 0;
  std::atomic<bool> done = false;
};

/// A message under way, to be awaited by a Task. Dropped, it goes on, and the engine keeps it.
class [[nodiscard]] Posted {
 public:
  Posted(Posted&&) noexcept = default;
  ~Posted();

  bool await_ready() const noexcept { return message_->ended; }
  void await_suspend(std::coroutine_handle<> task) noexcept { message_->waiter = task.address(); }
  /// CommError where something else came than was expected (it names both), or the transport failed.
  void await_resume() const;

 private:
  friend class Engine;
  // Made before the message is posted, which may end at once and then says what came.
  Posted(Engine* engine, std::unique_ptr<Message> message)
      : engine_(engine), expected_label_(message->label), expected_bytes_(message->bytes),
        message_(std::move(message)) {}

  Engine* engine_;
  uint32_t expected_label_;
  int64_t expected_bytes_;
  std::unique_ptr<Message> message_;
};

struct EngineOptions {
  double timeout_s = 300;
  /// A waiting thread looks this long before it sleeps; where ranks share cores it lets others run meanwhile.
  double look_s = 50e-6;
  bool cores_to_spare = false;
  /// The engine's thread takes over when the rank's has been away so long; later, up to so much, where that keeps
  /// coming back sooner, since a timer costs as much as an operation of 64 KiB.
  double away_s = 200e-6, away_at_most_s = 10e-3;
};

class Engine final : private MessageSink {
 public:
  using MakeTransport = std::function<std::unique_ptr<Transport>(MessageSink&)>;
  Engine(const MakeTransport& make, EngineOptions options);
  ~Engine();

  const Transport& transport() const { return *transport_; }

  /// Starts the task that `body` makes, at once or when the other job is done; it runs to its first wait. Behind a job
  /// it is made on any thread, while nothing else moves; what it throws, or the other job did, is the new job's error.
  std::shared_ptr<Job> start(bool in_background, const std::function<Task(Job&)>& body, Job* behind = nullptr);
  /// Posts a message of a task: called by tasks only.
  Posted send(std::unique_ptr<Message> message);
  Posted receive(std::unique_ptr<Message> message);

  /// Drives until the job is done or nothing has moved for look_s, but not for long; true if it is done.
  bool soon(Job& job);
  /// Drives, and sleeps in between, until the job is done; throws what its task threw, or when it takes longer than
  /// timeout_s, or at cancel().
  void wait(Job& job);
  /// From any thread: wait() throws, now and later.
  void cancel() noexcept;

  /// Drives until every job is done and all messages have left; false after timeout_s.
  bool drain(double timeout_s);
  /// Moves on for a moment.
  void nudge();
  /// Stops the engine's thread. What is still under way may go on writing to its memory: unless drain() was true, the
  /// engine must then live for ever.
  void stop();

 private:
  class Turn;
  friend class Posted;

  void begin(Job& job, const std::function<Task(Job&)>& body, const Job* behind);
  void on_ended(Message& message) override;
  bool step();
  void settle();
  void look(const Job* job, double quiet_s);
  void sleep(std::unique_lock<std::mutex>& lock, double seconds);
  void set_timer(double seconds);
  void take_over();
  void hand_over();
  void run();

  std::mutex mutex_;  // of everything below that is not atomic
  std::unique_ptr<Transport> transport_;
  EngineOptions options_;
  std::vector<std::unique_ptr<Message>> dropped_;  // outlives the jobs, which drop what they wait for
  std::vector<std::shared_ptr<Job>> active_;
  std::vector<std::shared_ptr<Job>> failed_;  // their other messages may still arrive
  int in_background_ = 0;
  std::deque<std::coroutine_handle<>> ready_;

  std::atomic<int> turns_ = 0;  // threads of the rank that drive or want to
  std::atomic<bool> cancelled_ = false;
  std::atomic<bool> stop_ = false;
  bool on_duty_ = false;  // the engine's thread listens to the transport
  std::atomic<bool> timer_set_ = false;  // when it runs out, it will, if the rank's thread has been away since `left_`
  double patience_s_;                    // what the timer is set to
  std::chrono::steady_clock::time_point left_;
  int wake_fd_ = -1, timer_fd_ = -1;
  std::thread thread_;
};

}  // namespace orthant
