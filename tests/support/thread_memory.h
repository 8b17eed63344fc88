// Counts the memory of each thread's tensors, and so that of each rank if ranks are threads.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <new>

namespace orthant {

/// Bytes of the tensors that this thread allocated: now, the peak since reset(), and the largest tensor since reset().
/// A tensor counts for the allocating thread, whichever thread frees it.
class ThreadMemory {
 public:
  /// Counts all CPU tensors of the process from this call on.
  static void install() {
    static Allocator allocator;
    c10::SetCPUAllocator(&allocator, 20);
  }
  static int64_t now() { return mine().now; }
  static int64_t peak() { return mine().peak; }
  static int64_t largest() { return mine().largest; }
  static void reset() { mine().peak = mine().now.load(), mine().largest = 0; }

 private:
  struct Counts {
    std::atomic<int64_t> now{0};
    int64_t peak = 0, largest = 0;
  };
  // Never freed, because a thread's tensors may outlive it.
  static Counts& mine() {
    thread_local auto* counts = new Counts;
    return *counts;
  }
  struct Header {
    Counts* owner;
    int64_t bytes;
  };
  struct Allocator final : c10::Allocator {
    static constexpr size_t kHeader = 64;
    c10::DataPtr allocate(size_t bytes) override {
      void* block = std::aligned_alloc(64, (bytes + kHeader + 63) / 64 * 64);
      if (block == nullptr) throw std::bad_alloc();
      Counts& counts = mine();
      *static_cast<Header*>(block) = {&counts, static_cast<int64_t>(bytes)};
      counts.peak = std::max(counts.peak, counts.now += static_cast<int64_t>(bytes));
      counts.largest = std::max(counts.largest, static_cast<int64_t>(bytes));
      void* data = static_cast<char*>(block) + kHeader;
      return {data, data, &free_data, c10::Device(c10::DeviceType::CPU)};
    }
    static void free_data(void* data) {
      if (data == nullptr) return;
      auto* header = reinterpret_cast<Header*>(static_cast<char*>(data) - kHeader);
      header->owner->now -= header->bytes;
      std::free(header);
    }
    c10::DeleterFnPtr raw_deleter() const override { return &free_data; }
    void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }
  };
};

}  // namespace orthant
