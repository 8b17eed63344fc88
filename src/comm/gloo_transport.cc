// c10d's Gloo over TCP as a Transport: one process group of all ranks. Gloo can wait for a message only by blocking: a
// wait with a time limit that expires closes all its connections. So threads wait, without a limit of their own: the
// engine counts the seconds that a rank waits, and the destructor aborts the operations in progress. Gloo ends the
// process if sizes differ, so each message follows a header with its size. Small messages travel with their header,
// from a copy: they have ended for their sender at once, and one thread waits for all of them.
//
// Growth with P ranks: up to kEagerRanks ranks connect at the start, every pair of them, so that the death of a rank
// breaks a connection. Among more ranks, a pair connects at its first message (Gloo's lazyInit). A rank has 5 threads,
// and one for each receive and each large send in progress: O(log P) in sums by tree, 2 (n - 1) in a direct collective
// over n ranks.
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <tuple>

#include "base/errors.h"
#include "comm/transport.h"
#include "launch/c10d_store.h"

namespace orthant {
namespace {

using WorkPtr = c10::intrusive_ptr<c10d::Work>;

struct Header {
  int64_t bytes = 0;
  uint32_t signature = 0, unused = 0;
};

constexpr int kEagerRanks = 16;

// Messages of up to this size travel with their header.
constexpr int64_t kSmallBytes = 4 << 10;

bool is_small(int64_t bytes) { return bytes <= kSmallBytes; }

// A header, and the data of a small message.
class Envelope {
 public:
  Envelope() : memory_(sizeof(Header) + kSmallBytes) {}
  explicit Envelope(const Message& message)
      : memory_(sizeof(Header) + static_cast<size_t>(is_small(message.bytes) ? message.bytes : 0)) {
    const Header header{message.bytes, message.signature};
    std::memcpy(memory_.data(), &header, sizeof header);
    if (is_small(message.bytes) && message.bytes > 0)
      std::memcpy(data(), message.data, static_cast<size_t>(message.bytes));
  }

  std::byte* memory() { return memory_.data(); }
  int64_t bytes() const { return static_cast<int64_t>(memory_.size()); }
  Header header() const {
    Header header;
    std::memcpy(&header, memory_.data(), sizeof header);
    return header;
  }
  std::byte* data() { return memory_.data() + sizeof(Header); }

 private:
  std::vector<std::byte> memory_;
};

// A pool of threads for blocking jobs, with one thread per job in progress; idle threads are reused. One thread at a
// time may submit jobs.
class Waiters {
 public:
  ~Waiters() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    for (auto& thread : threads_) thread.join();
  }

  /// Provides a thread for the next job. Throws if no thread can be created. Call it before posting a message that
  /// needs the thread.
  void reserve() {
    const std::lock_guard lock(mutex_);
    if (idle_ > jobs_.size()) return;
    threads_.emplace_back([this] { work(); });
    ++idle_;
  }

  /// Runs a job on a thread from reserve().
  void run(std::function<void()> job) {
    const std::lock_guard lock(mutex_);
    jobs_.push_back(std::move(job));
    changed_.notify_one();
  }

 private:
  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return stop_ || !jobs_.empty(); });
      if (jobs_.empty()) return;
      const auto job = std::move(jobs_.front());
      jobs_.pop_front();
      --idle_;
      lock.unlock();
      job();
      lock.lock();
      ++idle_;
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> jobs_;
  std::vector<std::thread> threads_;
  size_t idle_ = 0;  // threads without a job, new ones included
  bool stop_ = false;
};

constexpr std::chrono::milliseconds kNoLimit = std::chrono::hours(24 * 365);

std::chrono::milliseconds milliseconds(double s) { return std::chrono::milliseconds(static_cast<int64_t>(1000 * s)); }
at::Tensor as_tensor(void* memory, int64_t bytes) { return at::from_blob(memory, {bytes}, at::kByte); }

// A message that is being sent: its header with the data of a small message, and the memory of a large one.
struct Outgoing {
  explicit Outgoing(const Message& message)
      : peer(message.peer),
        tag(message.tag),
        envelope(message),
        rest(message.data),
        rest_bytes(is_small(message.bytes) ? 0 : message.bytes) {}

  int peer;
  uint32_t tag;
  Envelope envelope;
  std::byte* rest;
  int64_t rest_bytes;
  std::vector<WorkPtr> works;
};

class GlooTransport : public Transport {
 public:
  GlooTransport(const TransportOptions& options, MessageSink& sink)
      : sink_(sink),
        wait_for_value_(options.wait_for_value),
        connects_late_(options.world_size > kEagerRanks),
        event_fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    ORTHANT_CHECK(event_fd_ >= 0);
    auto gloo = c10d::ProcessGroupGloo::Options::create(milliseconds(options.connect_timeout_s));
    gloo->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname(options.address, connects_late_));
    gloo->threads = 1;
    group_ = c10::make_intrusive<c10d::ProcessGroupGloo>(options.store.under("gloo").handle().store, options.rank,
                                                         options.world_size, std::move(gloo));
    options.store.set(address_key(options.rank), "posted");
  }

  ~GlooTransport() override {
    {
      const std::lock_guard lock(mutex_);
      closing_ = true;
      for (const auto& work : in_progress_) work->abort();
    }
    waiters_.reset();
    close(event_fd_);
  }

  std::string name() const override { return "gloo"; }
  int event_fd() const override { return event_fd_; }
  int num_connections() const override { return static_cast<int>(known_.size()); }
  bool flushed() override { return under_way_ == 0 && small_sends_ == 0; }

  void send(Message& message) override {
    waiters_->reserve();
    wait_for_address(message.peer);
    const Key key{true, message.peer, message.tag};
    const bool is_posted = may_post(key);
    auto sent = std::make_shared<Outgoing>(message);
    if (is_posted) post(*sent);
    const auto wait = [this, sent, key, is_posted] {
      if (!is_posted) post_late(*sent, key);
      for (const WorkPtr& work : sent->works) complete(work, sent->peer);
    };
    if (is_small(message.bytes)) {
      ++small_sends_;
      message.ended = true;
      line_up(is_posted ? kSmallSends : key, [this, sent, wait] { end_small_send(sent->peer, wait); });
    } else {
      ++under_way_;
      line_up(key, [this, &message, wait] { end(message, wait); });
    }
  }

  // A header and its data are matched only by their order. Therefore one message per peer and tag is received at a
  // time.
  void receive(Message& message) override {
    waiters_->reserve();
    wait_for_address(message.peer);
    ++under_way_;
    line_up({false, message.peer, message.tag}, [this, &message] { end(message, [&] { receive_one(message); }); });
  }

  bool progress() override {
    std::vector<Message*> ended;
    {
      const std::lock_guard lock(mutex_);
      ended.swap(ended_);
    }
    for (Message* message : ended) {
      --under_way_;
      message->ended = true;
      sink_.on_ended(*message);
    }
    return !ended.empty();
  }

  bool arm() override {
    const std::lock_guard lock(mutex_);
    uint64_t count = 0;
    (void)!read(event_fd_, &count, sizeof count);
    return ended_.empty();
  }

 private:
  using Key = std::tuple<bool, int, uint32_t>;  // is a send, peer, tag
  // Small sends wait in one line. One that the peer is slow to receive delays only the release of the others' copies.
  static constexpr Key kSmallSends = {true, -1, 0};

  static std::string address_key(int rank) { return fmt::format("gloo_address/{}", rank); }

  // Gloo would wait for the peer's address without a look at the state of the run.
  void wait_for_address(int peer) {
    if (known_.contains(peer)) return;
    wait_for_value_(address_key(peer), peer);
    known_.insert(peer);
  }

  // The first message with a peer blocks the thread that posts it until the peer has posted one, too. So threads of the
  // pool post until a message with this peer has ended. Messages under one key are posted in order.
  bool may_post(const Key& key) {
    if (!connects_late_) return true;
    const std::lock_guard lock(mutex_);
    if (connected_.contains(std::get<int>(key)) && !unposted_.contains(key)) return true;
    ++unposted_[key];
    return false;
  }
  void post(Outgoing& out) {
    out.works.push_back(post_send(out.envelope.memory(), out.envelope.bytes(), out.peer, out.tag));
    if (out.rest_bytes > 0) out.works.push_back(post_send(out.rest, out.rest_bytes, out.peer, out.tag));
  }
  void post_late(Outgoing& out, const Key& key) {
    post(out);
    const std::lock_guard lock(mutex_);
    if (--unposted_.at(key) == 0) unposted_.erase(key);
  }

  WorkPtr post_send(void* memory, int64_t bytes, int peer, uint32_t tag) {
    std::vector<at::Tensor> tensors{as_tensor(memory, bytes)};
    return group_->send(tensors, peer, static_cast<int>(tag));
  }
  WorkPtr post_receive(void* memory, int64_t bytes, const Message& message) {
    std::vector<at::Tensor> tensors{as_tensor(memory, bytes)};
    return group_->recv(tensors, message.peer, static_cast<int>(message.tag));
  }

  // Waits until Gloo has completed the work, or until the destructor aborts it.
  void complete(const WorkPtr& work, int peer) {
    {
      const std::lock_guard lock(mutex_);
      if (closing_) throw CommError("the transport was closed");
      in_progress_.insert(work);
    }
    const auto no_longer = [&] {
      const std::lock_guard lock(mutex_);
      in_progress_.erase(work);
      connected_.insert(peer);
    };
    try {
      if (!work->wait(kNoLimit)) throw CommError("the transport was closed");
    } catch (...) {
      no_longer();
      throw;
    }
    no_longer();
  }

  // Messages to or from one peer under one tag end in order, so one thread waits for all of them.
  void line_up(const Key& key, std::function<void()> wait) {
    const std::lock_guard lock(mutex_);
    auto& queue = queues_[key];
    queue.push_back(std::move(wait));
    if (queue.size() == 1) waiters_->run([this, key, &first = queue.front()] { wait_in_order(key, &first); });
  }

  // Runs on a pool thread until no message under this key is in progress.
  void wait_in_order(const Key& key, const std::function<void()>* first) {
    while (first != nullptr) {
      (*first)();
      const std::lock_guard lock(mutex_);
      auto& queue = queues_[key];
      queue.pop_front();
      first = queue.empty() ? nullptr : &queue.front();
      if (queue.empty()) queues_.erase(key);
    }
  }

  void end_small_send(int peer, const std::function<void()>& wait) {
    std::string error;
    try {
      wait();
    } catch (const std::exception& failure) {
      error = brief(failure);
    }
    if (!error.empty()) sink_.on_lost(fmt::format("the connection to rank {} is lost: {}", peer, error));
    const std::lock_guard lock(mutex_);
    --small_sends_;
    wake();
  }

  void receive_one(Message& message) {
    Envelope envelope;
    complete(post_receive(envelope.memory(), envelope.bytes(), message), message.peer);
    const Header header = envelope.header();
    const int64_t room = message.bytes;
    message.bytes = header.bytes;
    message.signature = header.signature;
    if (is_small(header.bytes)) {
      if (const auto fitting = std::min(header.bytes, room); fitting > 0)
        std::memcpy(message.data, envelope.data(), static_cast<size_t>(fitting));
    } else {
      // A message that is too large is received anyway, because the next header follows it.
      std::vector<std::byte> aside(static_cast<size_t>(header.bytes > room ? header.bytes : 0));
      complete(post_receive(aside.empty() ? message.data : aside.data(), header.bytes, message), message.peer);
    }
    if (header.bytes > room) throw CommError("its message is larger than expected");
  }

  // Runs on a pool thread. An exception from `wait` becomes the error of the message.
  void end(Message& message, const std::function<void()>& wait) {
    try {
      wait();
    } catch (const std::exception& error) {
      message.error = fmt::format("rank {}: {}", message.peer, brief(error));
    }
    const std::lock_guard lock(mutex_);
    ended_.push_back(&message);
    wake();
  }

  void wake() const {
    const uint64_t one = 1;
    (void)!write(event_fd_, &one, sizeof one);
  }

  MessageSink& sink_;
  const std::function<std::string(const std::string& key, int rank)> wait_for_value_;
  const bool connects_late_;
  const int event_fd_;
  c10::intrusive_ptr<c10d::ProcessGroupGloo> group_;
  int64_t under_way_ = 0;  // used by the thread that drives the transport, one at a time
  std::set<int> known_;    // ranks with which messages were posted; used by that thread, too
  std::atomic<int64_t> small_sends_ = 0;  // that Gloo has not completed
  mutable std::mutex mutex_;              // of the members below
  bool closing_ = false;
  std::set<WorkPtr> in_progress_;
  std::vector<Message*> ended_;
  std::set<int> connected_;      // ranks with which a message has ended
  std::map<Key, int> unposted_;  // sends that threads of the pool post
  std::map<Key, std::deque<std::function<void()>>> queues_;
  std::unique_ptr<Waiters> waiters_ = std::make_unique<Waiters>();
};

}  // namespace

std::unique_ptr<Transport> gloo_transport(const TransportOptions& options, MessageSink& sink) {
  try {
    return std::make_unique<GlooTransport>(options, sink);
  } catch (const CommError&) {
    throw;
  } catch (const std::exception& error) {
    throw CommError(fmt::format("cannot connect over the local address {}: {}", options.address, brief(error)));
  }
}

}  // namespace orthant
