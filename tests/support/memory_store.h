// A store for thousands of ranks that are threads of one process. It counts requests as a TCPStore would receive them.
// c10d's HashStore wakes every waiting thread at every change, which takes O(P^2) for P ranks.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "launch/c10d_store.h"
#include "launch/store.h"

namespace orthant {

class MemoryStore : public c10d::Store {
 public:
  using Bytes = std::vector<uint8_t>;

  int64_t requests() const {
    const std::lock_guard lock(mutex_);
    return requests_;
  }

  c10::intrusive_ptr<c10d::Store> clone() override { return c10::intrusive_ptr<c10d::Store>::reclaim_copy(this); }
  using c10d::Store::set;
  void set(const std::string& key, const Bytes& value) override {
    const std::lock_guard lock(mutex_);
    ++requests_, put(key, value);
  }
  using c10d::Store::compareSet;
  Bytes compareSet(const std::string& key, const Bytes& expected, const Bytes& desired) override {
    const std::lock_guard lock(mutex_);
    ++requests_;
    const auto found = values_.find(key);
    if (found == values_.end() ? !expected.empty() : found->second != expected)
      return found == values_.end() ? expected : found->second;
    put(key, desired);
    return desired;
  }
  Bytes get(const std::string& key) override {
    std::unique_lock lock(mutex_);
    ++requests_;
    await({key}, lock, timeout_);
    return values_.at(key);
  }
  int64_t add(const std::string& key, int64_t delta) override {
    const std::lock_guard lock(mutex_);
    ++requests_;
    const auto found = values_.find(key);
    const int64_t sum = delta + (found == values_.end() ? 0 : std::stoll(text_of(found->second)));
    const std::string text = std::to_string(sum);
    put(key, {text.begin(), text.end()});
    return sum;
  }
  bool deleteKey(const std::string& key) override {
    const std::lock_guard lock(mutex_);
    ++requests_;
    return values_.erase(key) > 0;
  }
  bool check(const std::vector<std::string>& keys) override {
    const std::lock_guard lock(mutex_);
    ++requests_;
    return have(keys);
  }
  int64_t getNumKeys() override {
    const std::lock_guard lock(mutex_);
    return static_cast<int64_t>(values_.size());
  }
  void wait(const std::vector<std::string>& keys) override { wait(keys, timeout_); }
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) override {
    std::unique_lock lock(mutex_);
    ++requests_;
    await(keys, lock, timeout);
  }
  bool hasExtendedApi() const override { return true; }
  std::vector<Bytes> multiGet(const std::vector<std::string>& keys) override {
    std::unique_lock lock(mutex_);
    requests_ += 2;  // a TCPStore waits for the keys first
    await(keys, lock, timeout_);
    std::vector<Bytes> values;
    for (const std::string& key : keys) values.push_back(values_.at(key));
    return values;
  }

 private:
  static std::string text_of(const Bytes& value) { return {value.begin(), value.end()}; }
  bool have(const std::vector<std::string>& keys) const {
    for (const std::string& key : keys) {
      if (!values_.contains(key)) return false;
    }
    return true;
  }
  void await(const std::vector<std::string>& keys, std::unique_lock<std::mutex>& lock,
             std::chrono::milliseconds timeout) {
    for (const std::string& key : keys) {
      if (values_.contains(key)) continue;
      auto& waiters = waiters_[key];
      if (!waiters) waiters = std::make_shared<std::condition_variable>();
      const auto changed = waiters;
      if (changed->wait_for(lock, timeout, [&] { return values_.contains(key); })) continue;
      ++requests_;  // a TCPStore then cancels the wait
      throw std::runtime_error("timeout");
    }
  }
  void put(const std::string& key, const Bytes& value) {
    values_[key] = value;
    if (const auto found = waiters_.find(key); found != waiters_.end()) found->second->notify_all();
  }

  mutable std::mutex mutex_;
  std::map<std::string, Bytes> values_;
  std::map<std::string, std::shared_ptr<std::condition_variable>> waiters_;
  int64_t requests_ = 0;
};

/// The store as ranks use it.
inline Store store_of(const c10::intrusive_ptr<MemoryStore>& memory) {
  return Store(std::make_shared<StoreHandle>(StoreHandle{memory}), "store of this test");
}

}  // namespace orthant
