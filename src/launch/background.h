// Requests to a store that may never answer, because its process is stopped or its host is frozen.
#pragma once

#include <chrono>
#include <future>
#include <memory>
#include <system_error>
#include <thread>
#include <utility>

namespace orthant {

/// Runs a function on a thread that is abandoned if it never returns; the function must own all that it uses. If this
/// process may start no more threads, the caller runs it.
template <typename Function>
auto run_in_background(Function function) {
  const auto task = std::make_shared<std::packaged_task<decltype(function())()>>(std::move(function));
  auto result = task->get_future();
  try {
    std::thread([task] { (*task)(); }).detach();
  } catch (const std::system_error&) {
    (*task)();
  }
  return result;
}

/// Whether the result of run_in_background() is there.
template <typename Result>
bool is_ready(const std::future<Result>& result) {
  return result.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

}  // namespace orthant
