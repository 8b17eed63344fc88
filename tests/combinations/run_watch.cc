// A thread that ends the process if a run exceeds its time limit, and signal handlers that name the run of a crash.
#include "tests/combinations/run_watch.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace orthant {
namespace {

// The text of the run, where a signal handler may read it.
std::array<char, 4096> current{};

void print_current(const char* what) {
  // A signal handler may call write(), but not printf().
  for (const char* text : {"\n", what, ": ", static_cast<const char*>(current.data()), "\n"})
    (void)!::write(STDERR_FILENO, text, std::strlen(text));
}

void report_signal(int number) {
  print_current("died in");
  ::signal(number, SIG_DFL);
  ::raise(number);
}

}  // namespace

RunWatch::RunWatch(std::chrono::milliseconds longest) : longest_(longest), thread_([this] { watch(); }) {
  for (const int number : {SIGSEGV, SIGABRT, SIGFPE, SIGBUS}) ::signal(number, report_signal);
}

RunWatch::~RunWatch() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void RunWatch::start(const std::string& text) {
  const std::lock_guard lock(mutex_);
  const size_t size = std::min(text.size(), current.size() - 1);
  std::copy_n(text.begin(), size, current.begin());
  current[size] = '\0';
  running_ = true;
  ++number_;
  changed_.notify_all();
}

void RunWatch::stop() {
  const std::lock_guard lock(mutex_);
  running_ = false;
  current[0] = '\0';
  changed_.notify_all();
}

void RunWatch::watch() {
  std::unique_lock lock(mutex_);
  while (!ends_) {
    changed_.wait(lock, [&] { return ends_ || running_; });
    const int64_t number = number_;
    const auto over = [&] { return ends_ || !running_ || number_ != number; };
    if (changed_.wait_for(lock, longest_, over)) continue;
    print_current("hangs");
    std::_Exit(3);
  }
}

}  // namespace orthant
