#include "calibrate/on_all_cores.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <barrier>
#include <ctime>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "base/clock.h"

namespace orthant {
namespace {

// The time that this thread has computed. Unlike the clock on the wall, it does not count the turns of other programs.
double thread_seconds() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// Returns kernels with operands of this size, which together exceed the caches near a core. In a step, other operands
// have replaced those of a kernel since its last call.
std::vector<std::function<void()>> make_cold(double bytes, const std::function<std::function<void()>()>& make) {
  constexpr double kColdBytes = 32e6;
  std::vector<std::function<void()>> kernels;
  for (double sum = 0; kernels.empty() || (bytes > 0 && sum < kColdBytes); sum += bytes) kernels.push_back(make());
  return kernels;
}

}  // namespace

double time_on_all_cores(int64_t cores, double seconds, double bytes,
                         const std::function<std::function<void()>()>& make) {
  std::barrier start(cores);
  std::mutex mutex;
  std::vector<double> times;
  std::exception_ptr error;
  const auto run = [&] {
    at::set_num_threads(1);
    const std::vector<std::function<void()>> kernels = make_cold(bytes, make);
    kernels[0]();  // untimed first call: the library may initialize itself
    start.arrive_and_wait();
    std::vector<double> own;
    constexpr size_t kFewest = 3;
    const auto begin = Clock::now();
    while (own.size() < kFewest || seconds_since(begin) < seconds) {
      const double before = thread_seconds();
      kernels[own.size() % kernels.size()]();
      own.push_back(thread_seconds() - before);
    }
    const std::lock_guard lock(mutex);
    times.insert(times.end(), own.begin(), own.end());
  };
  std::vector<std::thread> threads;
  for (int64_t core = 0; core < cores; ++core) {
    threads.emplace_back([&] {
      try {
        run();
      } catch (...) {
        const std::lock_guard lock(mutex);
        error = std::current_exception();
        start.arrive_and_drop();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (error) std::rethrow_exception(error);
  std::ranges::nth_element(times, times.begin() + std::ssize(times) / 2);
  return times[times.size() / 2];
}

}  // namespace orthant
