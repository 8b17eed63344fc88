// Gloo through c10d. Connections are made when a group is opened, all groups share one device (one I/O thread):
// Gloo's lazy connections need a device per group, and closing one lazy group stops the device.
#include <ATen/ops/empty.h>

#include <condition_variable>
#include <mutex>
#include <numeric>
#include <stdexcept>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "base/errors.h"
#include "comm/c10d_store.h"
#include "comm/flat.h"
#include "comm/transport.h"

namespace orthant {
namespace {

using WorkPtr = c10::intrusive_ptr<c10d::Work>;
using GlooOptions = c10d::ProcessGroupGloo::Options;

std::chrono::milliseconds milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

// A flag that a waiting thread sleeps on. Gloo cannot break off a collective that waits for a peer, so it is not Gloo
// that we wait in.
struct Signal {
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false, cancelled = false;

  void set(bool Signal::*flag) {
    const std::lock_guard lock(mutex);
    this->*flag = true;
    changed.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return done || cancelled; });
    if (!done) throw std::runtime_error("broken off");
  }
};

// A collective: runs on a worker thread of c10d, and tells when it is complete.
class Collective : public Pending {
 public:
  explicit Collective(WorkPtr work) : work_(std::move(work)) {
    work_->getFuture()->addCallback([signal = signal_](c10::ivalue::Future&) { signal->set(&Signal::done); });
  }
  void wait() override {
    signal_->wait();
    work_->wait();
  }
  bool done() override { return work_->isCompleted(); }
  void cancel() noexcept override { signal_->set(&Signal::cancelled); }

 private:
  WorkPtr work_;
  std::shared_ptr<Signal> signal_ = std::make_shared<Signal>();
};

// A send or receive: waits inside Gloo, which can break off these.
class Message : public Pending {
 public:
  explicit Message(WorkPtr work) : work_(std::move(work)) {}
  void wait() override {
    if (!work_->wait()) throw std::runtime_error("broken off");
  }
  bool done() override { return work_->isCompleted(); }
  void cancel() noexcept override { work_->abort(); }

 private:
  WorkPtr work_;
};

std::unique_ptr<Pending> collective(WorkPtr work) { return std::make_unique<Collective>(std::move(work)); }

// Everybody's chunks of one shard, received by an all-to-all; summed when waited for, in order of position, and narrow
// floats in float32. (Gloo's own reduce-scatter is a whole all-reduce.)
class ReduceScatter : public Collective {
 public:
  ReduceScatter(WorkPtr exchange, at::Tensor chunks, at::Tensor output)
      : Collective(std::move(exchange)), chunks_(std::move(chunks)), output_(std::move(output)) {}
  void wait() override {
    Collective::wait();
    sum_in_order(chunks_, output_);
    chunks_.reset();
  }

 private:
  at::Tensor chunks_, output_;
};

// All-gather of uneven shards: n - 1 steps round the ring, in each of which a shard moves on to the next position. The
// first step is under way at once, the others are taken in wait().
class RingAllGather : public Pending {
 public:
  RingAllGather(c10d::Backend& group, at::Tensor output, std::vector<int64_t> counts)
      : group_(group), shards_(output.split_with_sizes(counts)) {
    post();
  }
  void wait() override {
    while (step_ < size() - 1) {
      send_->wait();
      receive_->wait();
      ++step_;
      post();
    }
  }
  bool done() override { return false; }
  void cancel() noexcept override {
    const std::lock_guard lock(mutex_);
    cancelled_ = true;
    send_->cancel();
    receive_->cancel();
  }

 private:
  static constexpr int kTag = 1 << 30;
  int size() const { return group_.getSize(); }
  at::Tensor& shard(int back) { return shards_[static_cast<size_t>((group_.getRank() - back + size()) % size())]; }
  void post() {
    if (step_ == size() - 1) return;
    const std::lock_guard lock(mutex_);
    if (cancelled_) throw std::runtime_error("broken off");
    std::vector<at::Tensor> out{shard(step_)}, in{shard(step_ + 1)};
    receive_ = std::make_unique<Message>(group_.recv(in, (group_.getRank() + size() - 1) % size(), kTag));
    send_ = std::make_unique<Message>(group_.send(out, (group_.getRank() + 1) % size(), kTag));
  }

  c10d::Backend& group_;
  std::vector<at::Tensor> shards_;
  int step_ = 0;
  std::mutex mutex_;
  bool cancelled_ = false;
  std::unique_ptr<Message> send_, receive_;
};

class GlooGroup : public Group {
 public:
  explicit GlooGroup(c10::intrusive_ptr<c10d::ProcessGroupGloo> group) : group_(std::move(group)) {}

  std::unique_ptr<Pending> all_reduce(const at::Tensor& tensor) override {
    std::vector<at::Tensor> tensors{flat(tensor)};
    return collective(group_->allreduce(tensors));
  }

  std::unique_ptr<Pending> reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                                          std::span<const int64_t> counts) override {
    const auto mine = output.numel();
    at::Tensor chunks = at::empty({group_->getSize(), mine}, output.options().requires_grad(false));
    at::Tensor to = flat_bytes(chunks), from = flat_bytes(input);
    std::vector<int64_t> received(static_cast<size_t>(group_->getSize()), mine * output.element_size());
    auto sent = counts_in_bytes(counts, input);
    WorkPtr exchange = group_->alltoall_base(to, from, received, sent);
    return std::make_unique<ReduceScatter>(std::move(exchange), std::move(chunks), flat(output));
  }

  std::unique_ptr<Pending> all_gather(const at::Tensor& output, const at::Tensor& input,
                                      std::span<const int64_t> counts) override {
    at::Tensor to = flat_bytes(output), from = flat_bytes(input);
    if (all_equal(counts)) return collective(group_->_allgather_base(to, from));
    const auto bytes = counts_in_bytes(counts, output);
    const auto before = std::accumulate(bytes.begin(), bytes.begin() + group_->getRank(), int64_t{0});
    to.narrow(0, before, from.numel()).copy_(from);
    return std::make_unique<RingAllGather>(*group_, to, bytes);
  }

  std::unique_ptr<Pending> all_to_all(const at::Tensor& output, const at::Tensor& input,
                                      std::span<const int64_t> output_counts,
                                      std::span<const int64_t> input_counts) override {
    at::Tensor to = flat_bytes(output), from = flat_bytes(input);
    auto received = counts_in_bytes(output_counts, output), sent = counts_in_bytes(input_counts, input);
    return collective(group_->alltoall_base(to, from, received, sent));
  }

  std::unique_ptr<Pending> broadcast(const at::Tensor& tensor, int root) override {
    std::vector<at::Tensor> tensors{flat_bytes(tensor)};
    c10d::BroadcastOptions options;
    options.rootRank = root;
    return collective(group_->broadcast(tensors, options));
  }

  std::unique_ptr<Pending> send(const at::Tensor& tensor, int to, int tag) override {
    std::vector<at::Tensor> tensors{flat_bytes(tensor)};
    return std::make_unique<Message>(group_->send(tensors, to, tag));
  }

  std::unique_ptr<Pending> recv(const at::Tensor& tensor, int from, int tag) override {
    std::vector<at::Tensor> tensors{flat_bytes(tensor)};
    return std::make_unique<Message>(group_->recv(tensors, from, tag));
  }

  std::unique_ptr<Pending> barrier() override { return collective(group_->barrier()); }

 private:
  c10::intrusive_ptr<c10d::ProcessGroupGloo> group_;
};

class GlooTransport : public Transport {
 public:
  explicit GlooTransport(const std::string& address)
      : device_(c10d::ProcessGroupGloo::createDeviceForHostname(address, /*lazyInit=*/false)) {}

  std::unique_ptr<Group> open(const Store& store, int position, int size, double timeout_s) override {
    auto options = GlooOptions::create(milliseconds(timeout_s));
    options->devices.push_back(device_);
    options->threads = 1;
    return std::make_unique<GlooGroup>(
        c10::make_intrusive<c10d::ProcessGroupGloo>(store.handle().board, position, size, std::move(options)));
  }

 private:
  std::shared_ptr<gloo::transport::Device> device_;
};

}  // namespace

std::unique_ptr<Transport> gloo_transport(const std::string& address) {
  try {
    return std::make_unique<GlooTransport>(address);
  } catch (const std::exception& error) {
    throw CommError(fmt::format("cannot listen on the local address {}: {}", address, brief(error)));
  }
}

}  // namespace orthant
