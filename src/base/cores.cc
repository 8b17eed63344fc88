#include "base/cores.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace orthant {

int available_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  const bool known = ::sched_getaffinity(0, sizeof set, &set) == 0;
  return std::max(1, known ? CPU_COUNT(&set) : static_cast<int>(std::thread::hardware_concurrency()));
}

void for_each_on_all_cores(size_t count, const std::function<void(size_t index, size_t worker)>& work) {
  std::atomic<size_t> next = 0;
  std::exception_ptr failure;
  std::mutex mutex;
  const auto run = [&](size_t worker) {
    try {
      for (size_t index = next++; index < count; index = next++) work(index, worker);
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!failure) failure = std::current_exception();
      next = count;
    }
  };
  {
    std::vector<std::jthread> threads;
    const size_t wanted = std::min(count, static_cast<size_t>(available_cores()));
    for (size_t worker = 1; worker < wanted; ++worker) threads.emplace_back(run, worker);
    run(0);
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace orthant
