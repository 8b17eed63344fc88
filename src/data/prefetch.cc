#include "data/prefetch.h"

#include <algorithm>
#include <utility>

namespace orthant {

Prefetcher::Prefetcher(const Loader& loader) : loader_(loader) {}

Prefetcher::~Prefetcher() {
  {
    const std::lock_guard lock(mutex_);
    stops_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Prefetcher::expect(const std::vector<SampleRange>& ranges) {
  const std::lock_guard lock(mutex_);
  std::deque<std::shared_ptr<Slot>> slots;
  for (const SampleRange& range : ranges) {
    const auto known = std::ranges::find(slots_, range, [](const auto& slot) { return slot->range; });
    if (known != slots_.end()) {
      slots.push_back(*known);
      continue;
    }
    auto slot = std::make_shared<Slot>();
    slot->range = range;
    slot->read = std::packaged_task<Batch()>([this, range] { return loader_.batch(range.first, range.count); });
    slot->batch = slot->read.get_future();
    slots.push_back(std::move(slot));
  }
  slots_ = std::move(slots);
  if (!slots_.empty() && !thread_.joinable()) thread_ = std::thread([this] { read_ahead(); });
  changed_.notify_all();
}

Batch Prefetcher::batch(const SampleRange& range) {
  std::shared_ptr<Slot> slot;
  bool reads_here = false;
  {
    const std::lock_guard lock(mutex_);
    const auto found = std::ranges::find(slots_, range, [](const auto& one) { return one->range; });
    if (found != slots_.end()) {
      slot = *found;
      reads_here = !std::exchange(slot->is_started, true);
    }
  }
  if (!slot) return loader_.batch(range.first, range.count);
  if (reads_here) slot->read();
  return slot->batch.get();
}

void Prefetcher::read_ahead() {
  std::unique_lock lock(mutex_);
  while (true) {
    const auto waiting = [&] {
      return std::ranges::find_if(slots_, [](const auto& slot) { return !slot->is_started; });
    };
    changed_.wait(lock, [&] { return stops_ || waiting() != slots_.end(); });
    if (stops_) return;
    const std::shared_ptr<Slot> slot = *waiting();
    slot->is_started = true;
    lock.unlock();
    slot->read();
    lock.lock();
  }
}

}  // namespace orthant
