// Counts the memory from operator new, which all rooms and header libraries use.
#include "tests/fuzz/hostile.h"

#include <fmt/format.h>
#include <malloc.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "base/errors.h"

namespace {

std::atomic<int64_t> held_bytes = 0, peak_bytes = 0;

void* allocate(size_t bytes) noexcept {
  void* memory = std::malloc(bytes == 0 ? 1 : bytes);
  if (memory == nullptr) return nullptr;
  const auto size = static_cast<int64_t>(::malloc_usable_size(memory));
  const int64_t held = held_bytes.fetch_add(size) + size;
  int64_t peak = peak_bytes.load();
  while (held > peak && !peak_bytes.compare_exchange_weak(peak, held)) {
  }
  return memory;
}

void* allocate_or_throw(size_t bytes) {
  void* memory = allocate(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

void release(void* memory) noexcept {
  if (memory == nullptr) return;
  held_bytes.fetch_sub(static_cast<int64_t>(::malloc_usable_size(memory)));
  std::free(memory);
}

}  // namespace

void* operator new(size_t bytes) { return allocate_or_throw(bytes); }
void* operator new[](size_t bytes) { return allocate_or_throw(bytes); }
void* operator new(size_t bytes, const std::nothrow_t&) noexcept { return allocate(bytes); }
void* operator new[](size_t bytes, const std::nothrow_t&) noexcept { return allocate(bytes); }
void operator delete(void* memory) noexcept { release(memory); }
void operator delete[](void* memory) noexcept { release(memory); }
void operator delete(void* memory, size_t) noexcept { release(memory); }
void operator delete[](void* memory, size_t) noexcept { release(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { release(memory); }
void operator delete[](void* memory, const std::nothrow_t&) noexcept { release(memory); }

namespace orthant::fuzz {

void require(bool holds, const std::string& law) {
  if (!holds) throw BrokenLaw(law);
}

bool read_hostile(size_t file_bytes, const MemoryLaw& law, const std::function<void()>& read) {
  const int64_t before = held_bytes;
  peak_bytes = before;
  bool accepted = true;
  try {
    read();
  } catch (const ConfigError&) {
    accepted = false;
  } catch (const DataError&) {
    accepted = false;
  }
  const auto taken = static_cast<size_t>(peak_bytes - before), most = law.base_bytes + law.per_byte * file_bytes;
  require(taken <= most,
          fmt::format("a file of {} bytes took {} bytes of memory, which must be at most {} + {} x {} = {}", file_bytes,
                      taken, law.base_bytes, law.per_byte, file_bytes, most));
  return accepted;
}

const std::string& ScratchFile::write(const uint8_t* data, size_t size) const {
  folder_.write(path_.substr(folder_.path().size() + 1), {reinterpret_cast<const char*>(data), size});
  return path_;
}

}  // namespace orthant::fuzz
