// Installs the signal handlers. A handler only sets atomic variables and calls async-signal-safe functions.
#include "runtime/stop.h"

#include "base/errors.h"

#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <ctime>

namespace orthant {
namespace {

// Variables that signal handlers use; they must be lock-free.
std::atomic<int> g_signal{0};
std::atomic<int64_t> g_interrupted_ns{0};
std::atomic<bool> g_prints{false}, g_trained{false};
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<int64_t>::is_always_lock_free);

// The signals that request a stop. SIGHUP is left out if it is ignored, as under nohup.
sigset_t stop_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1, SIGHUP}) {
    struct sigaction now {};
    sigaction(signal, nullptr, &now);
    if (signal != SIGHUP || now.sa_handler != SIG_IGN) sigaddset(&set, signal);
  }
  return set;
}

void handle_with(void (*handler)(int)) {
  const sigset_t set = stop_signals();
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  for (int signal = 1; signal < NSIG; ++signal) {
    if (sigismember(&set, signal) == 1) sigaction(signal, &action, nullptr);
  }
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
}

// Safe in a signal handler: calls only write(2).
void put(const char* text) {
  if (g_prints && write(STDERR_FILENO, text, std::strlen(text)) < 0) return;
}

void note(int signal) {
  constexpr int64_t kSameKeyPress_ns = 1'000'000'000;
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  const int64_t now = int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
  int64_t before = 0;
  if (signal == SIGINT && !g_interrupted_ns.compare_exchange_strong(before, now) && now - before > kSameKeyPress_ns) {
    std::signal(SIGINT, SIG_DFL);
    std::raise(SIGINT);
  }
  int none = 0;
  if (!g_signal.compare_exchange_strong(none, signal)) return;
  put(g_trained ? "\nall steps are done and saved; ending after the sample and the report"
                : "\nstopping after the current step, with a checkpoint");
  put(signal == SIGINT ? "; press Ctrl-C again to stop at once without saving\n" : "\n");
}

}  // namespace

void block_stop_signals() {
  const sigset_t set = stop_signals();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

void end_on_stop_signals(bool prints) {
  g_prints = prints;
  handle_with(exit_on_signal);
}

void record_stop_signals(bool prints) {
  g_prints = prints;
  handle_with(note);
}

void set_training_complete() { g_trained = true; }

int stop_signal() { return g_signal; }

void exit_on_signal(int signal) {
  put("stopped by SIG");
  put(sigabbrev_np(signal));
  put(" before the first step\n");
  _exit(kInterrupted);  // nothing was trained, so the run is not done
}

}  // namespace orthant
