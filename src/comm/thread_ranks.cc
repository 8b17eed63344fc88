// Runs ranks as threads, and selects the exception to rethrow.
#include "comm/thread_ranks.h"

#include <ATen/Parallel.h>

#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "base/errors.h"
#include "launch/failure_record.h"

namespace orthant {
namespace {

// Selects the exception that explains the others. A CommError is often only the consequence of another rank's failure.
class Failures {
 public:
  void add(std::exception_ptr error, bool echo) {
    const std::lock_guard lock(mutex_);
    if (!first_) first_ = error;
    if (!cause_ && !echo) cause_ = error;
  }
  void rethrow() const {
    if (cause_) std::rethrow_exception(cause_);
    if (first_) std::rethrow_exception(first_);
  }

 private:
  std::mutex mutex_;
  std::exception_ptr first_, cause_;
};

}  // namespace

void run_ranks(int ranks, const std::function<void(Rendezvous rendezvous, int rank)>& fn) {
  const Store store = Store::in_process();
  Failures failures;
  const auto run = [&](int rank) {
    at::set_num_threads(1);
    const auto fail = [&](const std::string& message, bool echo) {
      failures.add(std::current_exception(), echo);
      post_failure(store, fmt::format("rank {}: {}", rank, message));
    };
    try {
      fn(Rendezvous{.store = store, .rank = rank, .world_size = ranks, .in_process = true}, rank);
    } catch (const CommError& error) {
      fail(error.what(), true);
    } catch (const std::exception& error) {
      fail(brief(error), false);
    } catch (...) {
      fail("an exception of unknown type", false);
    }
  };
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) threads.emplace_back(run, rank);
  for (auto& thread : threads) thread.join();
  failures.rethrow();
}

}  // namespace orthant
