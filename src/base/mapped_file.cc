// Maps files and handles SIGBUS for them. The handler must be async-signal-safe: it takes no lock, allocates nothing,
// and finds the file in a fixed table of atomic pointers.
#include "base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>

#include "base/errors.h"

namespace orthant {

struct MappedFile::Mapping {
  explicit Mapping(const std::string& name);
  ~Mapping();
  bool holds(const void* place) const { return address != nullptr && place >= address && place < address + size; }

  std::string path;
  const std::byte* address = nullptr;
  std::size_t size = 0;

  // Table that the SIGBUS handler searches without a lock. If the table is full, further files are still mapped, but
  // the handler cannot name them.
  static std::array<std::atomic<const Mapping*>, 1024> all;
  static void on_bus_error(int, siginfo_t* info, void*);
};

std::array<std::atomic<const MappedFile::Mapping*>, 1024> MappedFile::Mapping::all = {};

void MappedFile::Mapping::on_bus_error(int, siginfo_t* info, void*) {
  for (const auto& place : all) {
    const Mapping* mapping = place.load();
    if (mapping == nullptr || !mapping->holds(info->si_addr)) continue;
    char text[8192] = "error: ";
    std::size_t length = std::strlen(text);
    const auto append = [&](const char* part) {
      const std::size_t bytes = std::min(std::strlen(part), sizeof text - length);
      std::memcpy(text + length, part, bytes);
      length += bytes;
    };
    append(mapping->path.c_str());
    append(": the file was shortened while it was being read, or its disk failed; restore the file and start again\n");
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text, length);
    ::_exit(kFailed);
  }
  std::signal(SIGBUS, SIG_DFL);  // the address is in no mapped file of the table
  std::raise(SIGBUS);
}

MappedFile::Mapping::Mapping(const std::string& name) : path(name) {
  const auto fail = [&](const char* doing) {
    return DataError(fmt::format("{}: {}: {}", path, doing, std::strerror(errno)));
  };
  // O_NONBLOCK: if the path is a pipe, open() returns at once and the check for a regular file rejects it.
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) throw fail("cannot open");
  struct stat status = {};
  const bool regular = ::fstat(file, &status) == 0 && S_ISREG(status.st_mode);
  void* mapped = nullptr;
  if (regular && status.st_size > 0) {  // mmap refuses an empty file
    mapped = ::mmap(nullptr, static_cast<std::size_t>(status.st_size), PROT_READ, MAP_PRIVATE, file, 0);
  }
  ::close(file);
  if (!regular) throw DataError(path + ": not a regular file");
  if (mapped == MAP_FAILED) throw fail("cannot be mapped");
  address = static_cast<const std::byte*>(mapped);
  size = static_cast<std::size_t>(status.st_size);

  static const bool handled = [] {
    struct sigaction before = {}, ours = {};
    ours.sa_sigaction = on_bus_error;
    ours.sa_flags = SA_SIGINFO;
    return ::sigaction(SIGBUS, nullptr, &before) == 0 && before.sa_handler == SIG_DFL &&
           ::sigaction(SIGBUS, &ours, nullptr) == 0;
  }();
  if (!handled) return;
  for (auto& place : all) {
    const Mapping* nobody = nullptr;
    if (place.compare_exchange_strong(nobody, this)) break;
  }
}

MappedFile::Mapping::~Mapping() {
  for (auto& place : all) {
    const Mapping* self = this;
    if (place.compare_exchange_strong(self, nullptr)) break;
  }
  if (address != nullptr) ::munmap(const_cast<std::byte*>(address), size);
}

MappedFile::MappedFile(const std::string& path) : mapping_(std::make_unique<Mapping>(path)) {}
MappedFile::MappedFile(MappedFile&&) noexcept = default;
MappedFile& MappedFile::operator=(MappedFile&&) noexcept = default;
MappedFile::~MappedFile() = default;

std::span<const std::byte> MappedFile::bytes() const { return {mapping_->address, mapping_->size}; }
const std::string& MappedFile::path() const { return mapping_->path; }

void forget(std::span<const std::byte> bytes) {
  // Whole pages only: those at the ends may belong to others.
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto address = reinterpret_cast<std::uintptr_t>(bytes.data());
  const std::uintptr_t begin = (address + page - 1) / page * page, end = (address + bytes.size()) / page * page;
  if (begin < end) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

std::string read_file(const std::string& path, int64_t limit_bytes) {
  const MappedFile file(path);
  const auto size_bytes = static_cast<int64_t>(file.bytes().size());
  if (size_bytes > limit_bytes) {
    throw DataError(fmt::format("{}: {} bytes, expected at most {}", path, size_bytes, limit_bytes));
  }
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

}  // namespace orthant
