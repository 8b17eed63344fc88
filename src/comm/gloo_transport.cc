// c10d's Gloo over TCP as a Transport: one process group of all ranks. Gloo can wait for a message only by blocking, so
// threads do that, without a time limit of their own: the engine counts the seconds that a rank waits, and the
// destructor aborts the operations in progress. Gloo ends the process if sizes differ, so each message follows a header
// with its size.
//
// Growth: Gloo connects every pair of ranks at the start. Each (peer, tag, direction) in use holds one blocked thread.
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <tuple>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "base/errors.h"
#include "launch/c10d_store.h"
#include "comm/transport.h"

namespace orthant {
namespace {

using WorkPtr = c10::intrusive_ptr<c10d::Work>;

struct Header {
  int64_t bytes = 0;
  uint32_t signature = 0, unused = 0;
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

class GlooTransport : public Transport {
 public:
  GlooTransport(const TransportOptions& options, MessageSink& sink)
      : sink_(sink), event_fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    ORTHANT_CHECK(event_fd_ >= 0);
    auto gloo = c10d::ProcessGroupGloo::Options::create(milliseconds(options.connect_timeout_s));
    gloo->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname(options.address, /*lazyInit=*/true));
    gloo->threads = 1;
    group_ = c10::make_intrusive<c10d::ProcessGroupGloo>(options.store.under("gloo").handle().store, options.rank,
                                                         options.world_size, std::move(gloo));
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
  int num_connections() const override { return static_cast<int>(connected_.size()); }
  bool flushed() override { return under_way_ == 0; }

  void send(Message& message) override {
    waiters_->reserve();
    connected_.insert(message.peer);
    ++under_way_;
    auto header = std::make_shared<Header>(Header{message.bytes, message.signature});
    std::vector<WorkPtr> works{post_send(header.get(), sizeof(Header), message)};
    if (message.bytes > 0) works.push_back(post_send(message.data, message.bytes, message));
    line_up({true, message.peer, message.tag}, message, [this, header, works] {
      for (const auto& work : works) complete(work);
    });
  }

  // A header and its data are matched only by their order. Therefore one message per peer and tag is received at a
  // time.
  void receive(Message& message) override {
    waiters_->reserve();
    connected_.insert(message.peer);
    ++under_way_;
    line_up({false, message.peer, message.tag}, message, [this, &message] { receive_one(message); });
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
  struct Waiting {
    Message* message;
    std::function<void()> wait;
  };

  // Gloo connects to the peer at the first message.
  WorkPtr post_send(void* memory, int64_t bytes, const Message& message) {
    std::vector<at::Tensor> tensors{as_tensor(memory, bytes)};
    return group_->send(tensors, message.peer, static_cast<int>(message.tag));
  }
  WorkPtr post_receive(void* memory, int64_t bytes, const Message& message) {
    std::vector<at::Tensor> tensors{as_tensor(memory, bytes)};
    return group_->recv(tensors, message.peer, static_cast<int>(message.tag));
  }

  // Waits until Gloo has completed the work, or until the destructor aborts it.
  void complete(const WorkPtr& work) {
    {
      const std::lock_guard lock(mutex_);
      if (closing_) throw CommError("the transport was closed");
      in_progress_.insert(work);
    }
    const auto no_longer = [&] {
      const std::lock_guard lock(mutex_);
      in_progress_.erase(work);
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
  void line_up(const Key& key, Message& message, std::function<void()> wait) {
    const std::lock_guard lock(mutex_);
    auto& queue = queues_[key];
    queue.push_back({&message, std::move(wait)});
    if (queue.size() == 1) waiters_->run([this, key, &first = queue.front()] { wait_in_order(key, &first); });
  }

  // Runs on a pool thread until no message under this key is in progress.
  void wait_in_order(const Key& key, const Waiting* first) {
    while (first != nullptr) {
      end(*first->message, first->wait);
      const std::lock_guard lock(mutex_);
      auto& queue = queues_[key];
      queue.pop_front();
      first = queue.empty() ? nullptr : &queue.front();
      if (queue.empty()) queues_.erase(key);
    }
  }

  void receive_one(Message& message) {
    Header header;
    complete(post_receive(&header, sizeof header, message));
    const int64_t room = message.bytes;
    message.bytes = header.bytes;
    message.signature = header.signature;
    // A message that is too large is received anyway, because the next header follows it.
    std::vector<std::byte> aside(static_cast<size_t>(header.bytes > room ? header.bytes : 0));
    void* const memory = aside.empty() ? message.data : aside.data();
    if (header.bytes > 0) complete(post_receive(memory, header.bytes, message));
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
    const uint64_t one = 1;
    (void)!write(event_fd_, &one, sizeof one);
  }

  MessageSink& sink_;
  const int event_fd_;
  c10::intrusive_ptr<c10d::ProcessGroupGloo> group_;
  int64_t under_way_ = 0;  // used by the thread that drives the transport, one at a time
  std::set<int> connected_;  // ranks; used by that thread, too
  std::mutex mutex_;         // of the members below
  bool closing_ = false;
  std::set<WorkPtr> in_progress_;
  std::vector<Message*> ended_;
  std::map<Key, std::deque<Waiting>> queues_;
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
