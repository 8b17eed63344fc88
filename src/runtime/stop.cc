#include "runtime/stop.h"

#include <atomic>
#include <csignal>

namespace orthant {
namespace {

std::atomic<StopRequest> g_request{StopRequest::none};
static_assert(std::atomic<StopRequest>::is_always_lock_free);

void on_signal(int signal) {
  if (signal == SIGINT && g_request.exchange(StopRequest::interrupt) == StopRequest::interrupt) {
    std::signal(SIGINT, SIG_DFL);
    std::raise(SIGINT);
  }
  if (signal != SIGINT) g_request = StopRequest::terminate;
}

}  // namespace

void catch_stop_signals() {
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1}) sigaction(signal, &action, nullptr);
  struct sigaction hangup {};
  sigaction(SIGHUP, nullptr, &hangup);
  if (hangup.sa_handler != SIG_IGN) sigaction(SIGHUP, &action, nullptr);  // nohup asks to be left alone
}

StopRequest stop_request() { return g_request; }

}  // namespace orthant
