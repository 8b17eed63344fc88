// A process that is killed at any system call of a save, or whose disk fails there: with an error, or with a write that
// stores only a part. The previous checkpoint or the new one loads in every bit, never a mixture, and the next save
// succeeds. This program replaces the functions of the C library that change files. Control: the faults do hit saves.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdarg>
#include <random>

#include "checkpoint/checkpoint.h"
#include "checkpoint/retention.h"
#include "tests/checkpoint/fixtures.h"
#include "tests/checkpoint/sample_content.h"

namespace orthant::kill_points_test {
namespace {

enum class Fault { none, kill, kill_within_write, io_error, full_disk, short_write };

// The fault comes at call number `at` of this process. Calls are counted from the moment this is set.
struct Injection {
  Fault fault = Fault::none;
  int64_t at = 0;
  int64_t calls = 0;
};
Injection g_injection;

// Counts a call. Returns true if it must fail, with errno set.
bool fails_now() {
  if (g_injection.fault == Fault::none || g_injection.calls++ != g_injection.at) return false;
  switch (g_injection.fault) {
    case Fault::kill:
      ::raise(SIGKILL);
      return false;
    case Fault::io_error:
      errno = EIO;
      return true;
    case Fault::full_disk:
      errno = ENOSPC;
      return true;
    default:
      return false;  // only write() knows these
  }
}

template <class Function>
Function real(const char* name) {
  return reinterpret_cast<Function>(::dlsym(RTLD_NEXT, name));
}

}  // namespace
}  // namespace orthant::kill_points_test

extern "C" {

using orthant::kill_points_test::fails_now;
using orthant::kill_points_test::Fault;
using orthant::kill_points_test::g_injection;
using orthant::kill_points_test::real;

ssize_t write(int file, const void* bytes, size_t size) {
  static const auto next = real<ssize_t (*)(int, const void*, size_t)>("write");
  const bool is_hit = g_injection.fault != Fault::none && g_injection.calls == g_injection.at;
  if (fails_now()) return -1;
  if (is_hit && g_injection.fault == Fault::kill_within_write) {
    (void)!next(file, bytes, size / 2);
    ::raise(SIGKILL);
  }
  return next(file, bytes, is_hit && g_injection.fault == Fault::short_write && size > 1 ? size / 2 : size);
}
int fsync(int file) {
  static const auto next = real<int (*)(int)>("fsync");
  return fails_now() ? -1 : next(file);
}
int rename(const char* from, const char* to) noexcept {
  static const auto next = real<int (*)(const char*, const char*)>("rename");
  return fails_now() ? -1 : next(from, to);
}
int symlink(const char* target, const char* path) noexcept {
  static const auto next = real<int (*)(const char*, const char*)>("symlink");
  return fails_now() ? -1 : next(target, path);
}
int mkdir(const char* path, mode_t mode) noexcept {
  static const auto next = real<int (*)(const char*, mode_t)>("mkdir");
  return fails_now() ? -1 : next(path, mode);
}
int unlinkat(int directory, const char* path, int flags) noexcept {
  static const auto next = real<int (*)(int, const char*, int)>("unlinkat");
  return fails_now() ? -1 : next(directory, path, flags);
}
int unlink(const char* path) noexcept {
  static const auto next = real<int (*)(const char*)>("unlink");
  return fails_now() ? -1 : next(path);
}
long syscall(long number, ...) noexcept {  // renameat2
  static const auto next = real<long (*)(long, ...)>("syscall");
  va_list list;
  va_start(list, number);
  long a[6];
  for (long& argument : a) argument = va_arg(list, long);
  va_end(list);
  return fails_now() ? -1 : next(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
int open(const char* path, int flags, ...) {
  static const auto next = real<int (*)(const char*, int, ...)>("open");
  va_list list;
  va_start(list, flags);
  const auto mode = (flags & O_CREAT) != 0 ? va_arg(list, mode_t) : mode_t{0};
  va_end(list);
  return fails_now() ? -1 : next(path, flags, mode);
}

}  // extern "C"

namespace orthant::kill_points_test {
namespace {

namespace fs = std::filesystem;

constexpr int kRefused = 3;  // exit code of a save that threw DataError

struct Ended {
  bool killed = false;
  int code = 0;
  int64_t calls = 0;
};

// Saves in a process of its own, with this fault.
Ended save_with(const Injection& injection, const std::string& folder, int64_t step, const Sample& sample, int keep) {
  int pipes[2];
  EXPECT_EQ(::pipe(pipes), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    int code = 0;
    g_injection = injection;
    try {
      save_checkpoint(folder, step, sample, keep);
    } catch (const DataError&) {
      code = kRefused;
    }
    const int64_t calls = g_injection.calls;
    g_injection = {};
    (void)!::write(pipes[1], &calls, sizeof calls);
    ::_exit(code);
  }
  ::close(pipes[1]);
  Ended ended;
  (void)!::read(pipes[0], &ended.calls, sizeof ended.calls);
  ::close(pipes[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  ended.killed = WIFSIGNALED(status);
  ended.code = WIFEXITED(status) ? WEXITSTATUS(status) : 0;
  return ended;
}

// Hits `points` saves at random calls with random faults.
void hit_saves(int points) {
  const TempFolder dir;
  const Sample old(10), newer(20, 40);
  std::mt19937_64 random(7);
  int killed = 0, refused = 0, unnoticed = 0;
  save_checkpoint(dir.path(), 10, old, 1);
  constexpr int64_t kNever = 1'000'000;
  const auto calls = static_cast<uint64_t>(save_with({Fault::kill, kNever}, dir.path(), 20, newer, 1).calls);
  save_checkpoint(dir.path(), 10, old, 1);
  ASSERT_GT(calls, 30u);
  for (int point = 0; point < points; ++point) {
    const bool replaces = random() % 4 == 0;  // a checkpoint of the same step
    const int64_t step = replaces ? 10 : 20;
    const int keep = static_cast<int>(random() % 2);
    const Injection injection{static_cast<Fault>(1 + random() % 5), static_cast<int64_t>(random() % calls)};
    const Ended ended = save_with(injection, dir.path(), step, newer, keep);
    killed += ended.killed, refused += ended.code == kRefused;
    unnoticed += !ended.killed && ended.code == 0;
    ASSERT_TRUE(ended.killed || ended.code == 0 || ended.code == kRefused) << "fault " << point;

    const auto latest = find_latest(dir.path());
    ASSERT_TRUE(latest) << "fault " << point;
    const LoadedCheckpoint loaded = open_checkpoint(*latest);
    const bool is_new = newer.holds(loaded);
    ASSERT_TRUE(is_new || old.holds(loaded)) << "fault " << point;
    const bool succeeded = !ended.killed && ended.code == 0;
    ASSERT_TRUE(is_new || !succeeded) << "a save that succeeded is found, fault " << point;
    if (fs::exists(dir / "step-000010/orthant/manifest.json") && !replaces) {
      ASSERT_TRUE(old.holds(open_checkpoint(dir / "step-000010"))) << "fault " << point;
    }
    // The next save succeeds, and leaves nothing of the failed one.
    save_checkpoint(dir.path(), 10, old, 1);
    ASSERT_EQ(members(dir.path()), (std::vector<std::string>{"latest", "step-000010"})) << "fault " << point;
  }
  EXPECT_GT(killed, points / 6);
  EXPECT_GT(refused, points / 8);
  EXPECT_GT(unnoticed, points / 20) << "short writes, and failures to remove old files";
}

TEST(CheckpointKilled, AtAnyCall) { hit_saves(100); }

TEST(LongCheckpointKilled, AtAnyCall) { hit_saves(10'000); }

}  // namespace
}  // namespace orthant::kill_points_test
