// A shim for LD_PRELOAD that makes memory-mapped files named *.bin slow, as on a cold disk: an access to a page waits
// for SLOW_DISK_MS milliseconds, unless the page is one of the last 8 that were read. For each wait it appends a line
// to the file SLOW_DISK_LOG: "main" if the main thread of the process waited, otherwise "other". slow_disk_test.py uses
// it.
//
// Pages are mapped without access, so that an access raises SIGSEGV. The handler waits, makes the page readable, and
// makes the oldest readable page inaccessible again. It calls async-signal-safe functions only.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <string_view>

namespace {

struct Mapping {
  std::atomic<std::uintptr_t> begin, end;
};

std::array<Mapping, 64> mappings;
std::atomic<bool> has_mappings;
std::array<std::atomic<std::uintptr_t>, 8> readable_pages;  // the last ones, as a ring
std::atomic<size_t> num_accesses;
std::uintptr_t page_bytes;
timespec delay;
int log_file = -1;
struct sigaction previous;

void fail(std::string_view text) {
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
  ::abort();
}

bool is_slow(std::uintptr_t address) {
  for (const Mapping& mapping : mappings) {
    if (address >= mapping.begin && address < mapping.end) return true;
  }
  return false;
}

void set_protection(std::uintptr_t page, int protection) {
  ::mprotect(reinterpret_cast<void*>(page), page_bytes, protection);
}

void on_access(int signal, siginfo_t* info, void* context) {
  const auto address = reinterpret_cast<std::uintptr_t>(info->si_addr);
  if (is_slow(address)) {
    const int error = errno;
    timespec left = delay;
    while (::nanosleep(&left, &left) != 0) {
    }
    const std::string_view line = ::syscall(SYS_gettid) == ::getpid() ? "main\n" : "other\n";
    [[maybe_unused]] const ssize_t written = ::write(log_file, line.data(), line.size());
    const std::uintptr_t page = address / page_bytes * page_bytes;
    set_protection(page, PROT_READ);
    const std::uintptr_t oldest = readable_pages[num_accesses++ % readable_pages.size()].exchange(page);
    if (oldest != page && is_slow(oldest)) set_protection(oldest, PROT_NONE);
    errno = error;
  } else if ((previous.sa_flags & SA_SIGINFO) != 0) {
    previous.sa_sigaction(signal, info, context);
  } else if (previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN) {
    previous.sa_handler(signal);
  } else {
    ::signal(signal, SIG_DFL);  // the access is repeated, and ends the process
  }
}

// UCX replaces sigaction() by a function that ignores SIGSEGV; therefore this takes that of the C library.
void install() {
  void* library = ::dlopen("libc.so.6", RTLD_NOLOAD | RTLD_LAZY);
  auto* set_action = reinterpret_cast<decltype(&::sigaction)>(library ? ::dlsym(library, "sigaction") : nullptr);
  const char* milliseconds = std::getenv("SLOW_DISK_MS");
  const char* log = std::getenv("SLOW_DISK_LOG");
  if (!set_action || !milliseconds || !log) fail("slow_disk: no sigaction(), SLOW_DISK_MS or SLOW_DISK_LOG\n");
  const auto nanoseconds = static_cast<int64_t>(std::atof(milliseconds) * 1e6);
  delay = {.tv_sec = nanoseconds / 1'000'000'000, .tv_nsec = nanoseconds % 1'000'000'000};
  page_bytes = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  log_file = ::open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (log_file < 0) fail("slow_disk: SLOW_DISK_LOG cannot be opened\n");
  struct sigaction ours = {};
  ours.sa_sigaction = on_access;
  ours.sa_flags = SA_SIGINFO | SA_RESTART;
  if (set_action(SIGSEGV, &ours, &previous) != 0) fail("slow_disk: SIGSEGV cannot be handled\n");
}

bool is_named_bin(int file) {
  char link[] = "/proc/self/fd/0123456789";
  char digits[16];
  size_t count = 0;
  for (int left = file; left > 0 || count == 0; left /= 10) digits[count++] = static_cast<char>('0' + left % 10);
  char* end = std::strchr(link, '0');
  while (count > 0) *end++ = digits[--count];
  *end = 0;
  char path[4096];
  const ssize_t length = ::readlink(link, path, sizeof path);
  return length > 0 && std::string_view(path, static_cast<size_t>(length)).ends_with(".bin");
}

// The system call itself: mmap() may be called before the dynamic linker has finished.
void* map(void* address, size_t bytes, int protection, int flags, int file, off_t offset) {
  const bool slow = file >= 0 && protection == PROT_READ && is_named_bin(file);
  const long result = ::syscall(SYS_mmap, address, bytes, slow ? PROT_NONE : protection, flags, file, offset);
  auto* mapped = reinterpret_cast<void*>(result);
  if (!slow || mapped == MAP_FAILED) return mapped;
  static const bool installed = (install(), true);
  if (!installed) return mapped;
  for (Mapping& mapping : mappings) {
    if (mapping.end != 0) continue;
    mapping.begin = reinterpret_cast<std::uintptr_t>(mapped);
    mapping.end = mapping.begin + bytes;
    has_mappings = true;
    return mapped;
  }
  fail("slow_disk: too many files\n");
  return mapped;
}

}  // namespace

extern "C" {
void* mmap(void* address, size_t bytes, int protection, int flags, int file, off_t offset) noexcept {
  return map(address, bytes, protection, flags, file, offset);
}
void* mmap64(void* address, size_t bytes, int protection, int flags, int file, off64_t offset) noexcept {
  return map(address, bytes, protection, flags, file, offset);
}
int munmap(void* address, size_t bytes) noexcept {
  for (size_t i = 0; has_mappings && i < mappings.size(); ++i) {
    if (mappings[i].begin == reinterpret_cast<std::uintptr_t>(address)) mappings[i].begin = mappings[i].end = 0;
  }
  return static_cast<int>(::syscall(SYS_munmap, address, bytes));
}
}
