// Task: a coroutine that starts at once and suspends where it waits for messages. An Engine resumes it; collectives are
// written as Tasks, so that each reads as straight-line code and yet many can be under way.
#pragma once

#include <coroutine>
#include <exception>
#include <utility>

namespace orthant {

/// Destroying one that is not done destroys what it waits for.
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

  /// A Task that is none has nothing to do.
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
