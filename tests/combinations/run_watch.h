// Says which combination is running when the process hangs or crashes.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

namespace orthant {

/// Longest time for one combination with all its ways out, on a busy machine.
inline constexpr std::chrono::seconds kLongestRun{180};

/// From start() to stop(), a run that takes longer than `longest`, or that dies of a signal, ends the process with a
/// message that holds the text given to start(). One object in a process.
class RunWatch {
 public:
  explicit RunWatch(std::chrono::milliseconds longest = kLongestRun);
  ~RunWatch();
  RunWatch(const RunWatch&) = delete;

  void start(const std::string& text);
  void stop();

 private:
  void watch();

  std::chrono::milliseconds longest_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool running_ = false, ends_ = false;
  int64_t number_ = 0;  // of the run
  std::thread thread_;
};

}  // namespace orthant
