// Reports which combination was running when the process hangs or crashes.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

namespace orthant {

/// Time limit for one combination with all its ways out, even on a busy machine.
inline constexpr std::chrono::seconds kLongestRun{180};

/// Watches the run between start() and stop(). If it takes longer than `longest`, or a signal kills the process, the
/// process ends with a message that holds the text given to start(). A process may have only one RunWatch.
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
  int64_t number_ = 0;  // number of runs started
  std::thread thread_;
};

}  // namespace orthant
