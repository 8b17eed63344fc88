// The counting and caching CPU allocator. Each block has a header with its sizes, so that freeing it needs no table.
#include "runtime/memory.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstdlib>
#include <mutex>
#include <new>
#include <stdexcept>
#include <vector>

#include "base/errors.h"
#include "base/text.h"

namespace orthant {
namespace {

constexpr size_t kHeaderBytes = 64;              // holds the block's sizes; keeps the data aligned to cache lines
constexpr size_t kCachedFrom = size_t{1} << 16;  // smaller blocks: malloc's own caches are fast enough

struct Header {
  size_t asked, capacity;
};

std::atomic<int64_t> g_allocated{0}, g_peak{0};

// Freed blocks by size class. glibc returns large blocks to the kernel, and then pays a page fault for each page of the
// next block. A training step requests the same sizes again and again.
class BlockCache {
 public:
  // Rounds up to one of eight size classes per power of two, so that at most one eighth of a block is wasted.
  static size_t round_up(size_t bytes) {
    if (bytes < kCachedFrom) return bytes;
    const size_t step = std::bit_floor(bytes) / 8;
    return (bytes + step - 1) / step * step;
  }

  void* take(size_t capacity) {
    const std::lock_guard lock(mutex_);
    auto& blocks = blocks_[class_of(capacity)];
    if (blocks.empty()) return nullptr;
    void* block = blocks.back();
    blocks.pop_back();
    return block;
  }

  void keep(void* block, size_t capacity) {
    const std::lock_guard lock(mutex_);
    blocks_[class_of(capacity)].push_back(block);
  }

  // Returns all blocks to malloc, for when memory is short.
  void release() {
    const std::lock_guard lock(mutex_);
    for (auto& blocks : blocks_) {
      for (void* block : blocks) std::free(block);
      blocks.clear();
    }
  }

 private:
  static size_t class_of(size_t capacity) {
    const auto power = static_cast<size_t>(std::bit_width(capacity)) - 1;
    return power * 8 + (capacity - (size_t{1} << power)) / ((size_t{1} << power) / 8);
  }

  std::mutex mutex_;
  std::array<std::vector<void*>, 64 * 8> blocks_;
};

BlockCache& cache() {
  static auto* instance = new BlockCache;  // never destroyed: static tensors are freed after main
  return *instance;
}

void* new_block(size_t capacity) {
  if (capacity >= kCachedFrom) {
    if (void* block = cache().take(capacity)) return block;
  }
  const size_t bytes = (capacity + kHeaderBytes + 63) / 64 * 64;
  void* block = std::aligned_alloc(64, bytes);
  if (block == nullptr) {
    cache().release();
    block = std::aligned_alloc(64, bytes);
  }
  if (block == nullptr) {
    throw std::runtime_error(fmt::format("out of memory: the system cannot provide {} for a tensor; "
                                         "other tensors hold {}",
                                         format_bytes(static_cast<double>(bytes)),
                                         format_bytes(static_cast<double>(allocated_bytes()))));
  }
  return block;
}

void free_data(void* data) {
  if (data == nullptr) return;
  void* block = static_cast<char*>(data) - kHeaderBytes;
  const Header header = *static_cast<Header*>(block);
  g_allocated.fetch_sub(static_cast<int64_t>(header.asked), std::memory_order_relaxed);
  if (header.capacity >= kCachedFrom) {
    cache().keep(block, header.capacity);
  } else {
    std::free(block);
  }
}

class CountingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) return {nullptr, nullptr, &free_data, c10::Device(c10::DeviceType::CPU)};
    const size_t capacity = BlockCache::round_up(bytes);
    void* block = new_block(capacity);
    *static_cast<Header*>(block) = {bytes, capacity};
    const int64_t now = g_allocated.fetch_add(static_cast<int64_t>(bytes), std::memory_order_relaxed) +
                        static_cast<int64_t>(bytes);
    int64_t peak = g_peak.load(std::memory_order_relaxed);
    while (now > peak && !g_peak.compare_exchange_weak(peak, now, std::memory_order_relaxed)) {
    }
    void* data = static_cast<char*>(block) + kHeaderBytes;
    return {data, data, &free_data, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_data; }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }
};

}  // namespace

void install_counting_allocator() {
  static auto* allocator = new CountingAllocator;
  c10::SetCPUAllocator(allocator, /*priority=*/10);
}

int64_t allocated_bytes() { return g_allocated.load(std::memory_order_relaxed); }
int64_t peak_allocated_bytes() { return g_peak.load(std::memory_order_relaxed); }
void reset_peak_allocated_bytes() { g_peak.store(allocated_bytes(), std::memory_order_relaxed); }

}  // namespace orthant
