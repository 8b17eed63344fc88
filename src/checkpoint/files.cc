// Durable files on POSIX: every write is checked, synced and renamed, and every error names the file.
#include "checkpoint/files.h"

#include "base/errors.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

namespace orthant {
namespace {

[[noreturn]] void fail(const std::string& path, const std::string& doing, int error_number) {
  const bool is_full = error_number == ENOSPC || error_number == EDQUOT;
  throw DataError(fmt::format("{}: {}: {}{}", path, doing, std::strerror(error_number),
                              is_full ? "; free some space, or name a folder on another disk" : ""));
}

// A file descriptor that the destructor closes. It is opened non-blocking, so that a pipe in place of a file is refused
// at once.
struct Descriptor {
  int number = -1;
  explicit Descriptor(const std::string& path, int flags = O_RDONLY)
      : number(::open(path.c_str(), flags | O_CLOEXEC | O_NONBLOCK)) {
    if (number < 0) fail(path, "cannot open", errno);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() { ::close(number); }

  int64_t regular_file_bytes(const std::string& path) const {
    struct stat status {};
    if (::fstat(number, &status) != 0) fail(path, "cannot stat", errno);
    if (!S_ISREG(status.st_mode)) throw DataError(fmt::format("{}: not a regular file", path));
    return status.st_size;
  }
};

// Reads until the buffer is full or the file ends. Returns the number of bytes read.
std::size_t read_fully(int descriptor, std::span<char> buffer, const std::string& path) {
  std::size_t done = 0;
  while (done < buffer.size()) {
    const ssize_t got = ::read(descriptor, buffer.data() + done, buffer.size() - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail(path, fmt::format("offset {}: cannot read", done), errno);
    if (got == 0) break;
    done += static_cast<std::size_t>(got);
  }
  return done;
}

}  // namespace

void Digester::add(std::span<const std::byte> bytes) {
  digest_.bytes += static_cast<int64_t>(bytes.size());
  while (!bytes.empty()) {
    const auto part = bytes.first(std::min(bytes.size(), static_cast<std::size_t>(block_bytes_ - filled_bytes_)));
    hasher_.add({reinterpret_cast<const char*>(part.data()), part.size()});
    filled_bytes_ += static_cast<int64_t>(part.size());
    bytes = bytes.subspan(part.size());
    if (filled_bytes_ == block_bytes_) end_block();
  }
}

void Digester::end_block() {
  digest_.block_xxh3.push_back(hasher_.digest());
  hasher_.reset();
  filled_bytes_ = 0;
}

FileDigest Digester::finish() {
  if (filled_bytes_ > 0) end_block();
  return std::move(digest_);
}

OutputFile::OutputFile(std::string path) : path_(std::move(path)) {
  const std::filesystem::path final_path(path_);
  temporary_ = final_path.parent_path() / ("." + final_path.filename().string() + ".tmp");
  descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (descriptor_ < 0) fail(temporary_, fmt::format("cannot create it, to write {}", path_), errno);
}

OutputFile::~OutputFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void OutputFile::write(std::span<const std::byte> bytes) {
  digester_.add(bytes);
  while (!bytes.empty()) {
    // One call writes at most 2 GiB on Linux; calls of 1 GiB keep the remainder simple.
    const std::size_t wanted = std::min<std::size_t>(bytes.size(), std::size_t{1} << 30);
    const ssize_t written = ::write(descriptor_, bytes.data(), wanted);
    if (written < 0 && errno == EINTR) continue;
    // A file system that takes nothing, and gives no reason, is full.
    if (written <= 0)
      fail(path_, fmt::format("offset {}: cannot write {} bytes", offset_bytes_, wanted), written < 0 ? errno : ENOSPC);
    offset_bytes_ += written;
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
}

void OutputFile::write(std::string_view text) { write(std::as_bytes(std::span(text.data(), text.size()))); }

FileDigest OutputFile::commit() {
  ORTHANT_CHECK(descriptor_ >= 0, path_);
  if (::fsync(descriptor_) != 0) fail(path_, "cannot sync", errno);
  // A network file system may report a full disk only when the file is closed.
  if (::close(std::exchange(descriptor_, -1)) != 0) fail(path_, "cannot close", errno);
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail(path_, "cannot rename the finished file", errno);
  temporary_.clear();
  const std::string parent = std::filesystem::path(path_).parent_path();
  sync_directory(parent.empty() ? "." : parent);
  return digester_.finish();
}

FileDigest write_file(const std::string& path, std::string_view text) {
  OutputFile file(path);
  file.write(text);
  return file.commit();
}

FileDigest digest_file(const std::string& path) {
  const Descriptor file(path);
  file.regular_file_bytes(path);
  ::posix_fadvise(file.number, 0, 0, POSIX_FADV_SEQUENTIAL);
  Digester digester;
  std::string block(std::size_t{1} << 20, '\0');
  while (const std::size_t got = read_fully(file.number, block, path)) {
    digester.add(std::as_bytes(std::span(block.data(), got)));
  }
  return digester.finish();
}

void sync_file(const std::string& path) {
  const Descriptor file(path);
  if (::fsync(file.number) != 0) fail(path, "cannot sync", errno);
}

void sync_directory(const std::string& directory) {
  const Descriptor file(directory, O_RDONLY | O_DIRECTORY);
  // Some network and user-space file systems cannot sync directories; they make renames durable by other means.
  if (::fsync(file.number) != 0 && errno != EINVAL && errno != ENOTSUP) fail(directory, "cannot sync", errno);
}

}  // namespace orthant
