// Writes a dataset in Megatron's indexed format through temporary files that replace the old ones in finish().
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <limits>
#include <utility>

#include "base/errors.h"
#include "data/folder_lock.h"
#include "data/indexed_dataset.h"

namespace orthant {

namespace {

[[noreturn]] void fail(const std::string& path, const char* what) {
  throw DataError(
      fmt::format("{}: {}: {}; free some space or choose another folder", path, what, std::strerror(errno)));
}

void put(std::FILE* file, const std::string& path, const void* data, size_t bytes) {
  if (bytes != 0 && std::fwrite(data, 1, bytes, file) != bytes) fail(path, "cannot write");
}

template <typename T>
void put_value(std::FILE* file, const std::string& path, T value) {
  put(file, path, &value, sizeof(T));
}

/// Flushes to disk and closes. The handle is closed and null afterwards, even if this throws.
void sync_and_close(std::FILE*& file, const std::string& path) {
  const bool synced = std::fflush(file) == 0 && ::fsync(::fileno(file)) == 0;
  const int error = errno;
  const bool closed = std::fclose(std::exchange(file, nullptr)) == 0;
  if (!synced) errno = error;
  if (!synced || !closed) fail(path, "cannot write to the disk");
}

template <typename T>
void put_tokens(std::FILE* file, const std::string& path, std::span<const int32_t> tokens) {
  std::vector<T> narrow(tokens.begin(), tokens.end());
  put(file, path, narrow.data(), narrow.size() * sizeof(T));
}

}  // namespace

IndexedDatasetWriter::IndexedDatasetWriter(const std::string& prefix, int64_t vocab_size)
    : prefix_(prefix),
      bin_temporary_(fmt::format("{}.bin.tmp{}", prefix, ::getpid())),
      idx_temporary_(fmt::format("{}.idx.tmp{}", prefix, ::getpid())),
      vocab_size_(vocab_size),
      type_(vocab_size <= 256    ? TokenType::kU8
            : vocab_size < 65500 ? TokenType::kU16
                                 : TokenType::kI32) {
  ORTHANT_CHECK(vocab_size >= 1 && vocab_size <= int64_t{1} << 31, vocab_size);
  const auto parent = std::filesystem::path(prefix).parent_path();
  std::error_code ignored;  // an error shows when the file is opened
  if (!parent.empty()) std::filesystem::create_directories(parent, ignored);
  const std::string folder = parent.empty() ? "." : parent.string(), name = std::filesystem::path(prefix).filename();
  for (const char* ending : {".bin.tmp", ".idx.tmp"}) remove_stale_temporaries(folder, name + ending);
  bin_ = std::fopen(bin_temporary_.c_str(), "wbe");
  if (!bin_) fail(bin_temporary_, "cannot create");
}

IndexedDatasetWriter::~IndexedDatasetWriter() {
  if (bin_) std::fclose(bin_);
  ::unlink(bin_temporary_.c_str());
  ::unlink(idx_temporary_.c_str());
}

void IndexedDatasetWriter::add_document(std::span<const int32_t> tokens) {
  ORTHANT_CHECK(bin_ != nullptr);
  ORTHANT_CHECK(tokens.size() <= static_cast<size_t>(std::numeric_limits<int32_t>::max()), tokens.size());
  for (int32_t token : tokens) ORTHANT_CHECK(token >= 0 && token < vocab_size_, token, vocab_size_);
  switch (type_) {
    case TokenType::kU8:
      put_tokens<uint8_t>(bin_, bin_temporary_, tokens);
      break;
    case TokenType::kU16:
      put_tokens<uint16_t>(bin_, bin_temporary_, tokens);
      break;
    default:
      put_tokens<int32_t>(bin_, bin_temporary_, tokens);
  }
  lengths_.push_back(static_cast<int32_t>(tokens.size()));
  num_tokens_ += static_cast<int64_t>(tokens.size());
}

void IndexedDatasetWriter::write_index() {
  std::FILE* file = std::fopen(idx_temporary_.c_str(), "wbe");
  if (!file) fail(idx_temporary_, "cannot create");
  try {
    put(file, idx_temporary_, "MMIDIDX\0\0", 9);
    put_value<uint64_t>(file, idx_temporary_, 1);
    put_value(file, idx_temporary_, static_cast<uint8_t>(type_));
    put_value<uint64_t>(file, idx_temporary_, lengths_.size());
    put_value<uint64_t>(file, idx_temporary_, lengths_.size() + 1);
    put(file, idx_temporary_, lengths_.data(), 4 * lengths_.size());
    const int64_t width = type_ == TokenType::kU8 ? 1 : type_ == TokenType::kU16 ? 2 : 4;
    int64_t pointer = 0;
    for (int32_t length : lengths_) {
      put_value(file, idx_temporary_, pointer);
      pointer += length * width;
    }
    for (int64_t document = 0; document <= num_documents(); ++document) put_value(file, idx_temporary_, document);
    sync_and_close(file, idx_temporary_);
  } catch (...) {
    if (file) std::fclose(file);
    throw;
  }
}

void IndexedDatasetWriter::finish() {
  ORTHANT_CHECK(bin_ != nullptr);
  sync_and_close(bin_, bin_temporary_);
  write_index();
  // Deletes the old index first, so that no crash pairs it with the new tokens.
  const std::string bin = prefix_ + ".bin", idx = prefix_ + ".idx";
  if (::unlink(idx.c_str()) != 0 && errno != ENOENT) fail(idx, "cannot replace");
  if (::rename(bin_temporary_.c_str(), bin.c_str()) != 0) fail(bin, "cannot rename");
  if (::rename(idx_temporary_.c_str(), idx.c_str()) != 0) fail(idx, "cannot rename");
  const auto parent = std::filesystem::path(prefix_).parent_path();
  if (const int folder = ::open(parent.empty() ? "." : parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
      folder >= 0) {
    ::fsync(folder);
    ::close(folder);
  }
}

}  // namespace orthant
