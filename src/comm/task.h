// Task: a coroutine that starts at once and suspends while it waits for messages. An Engine resumes it. Collectives are
// Tasks, so each reads as straight-line code while many run at once.
#pragma once

#include <coroutine>
#include <exception>
#include <utility>

namespace orthant {

/// Owns the coroutine. Destroying a Task that is not done destroys its local variables. The engine keeps the
/// messages that it awaited.
class [[nodiscard]] Task {
 public:
  struct promise_type {
    std::exception_ptr error;

    Task get_return_object() { return Task(std::coroutine_handle<promise_type>::from_promise(*this)); }
    std::suspend_never initial_suspend() noexcept { return {}; }
    std::suspend_always final_suspend() noexcept { return {}; }
    void unhandled_exception() noexcept { error = std::current_exception(); }
    void return_void() noexcept {}
  };

  Task() = default;
  Task(Task&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Task& operator=(Task&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Task() {
    if (handle_) handle_.destroy();
  }

  /// True if the coroutine has ended. An empty Task is done.
  bool done() const { return !handle_ || handle_.done(); }
  bool failed() const { return handle_ && handle_.promise().error != nullptr; }
  void rethrow() const {
    if (failed()) std::rethrow_exception(handle_.promise().error);
  }

 private:
  explicit Task(std::coroutine_handle<promise_type> handle) : handle_(handle) {}
  std::coroutine_handle<promise_type> handle_;
};

}  // namespace orthant
