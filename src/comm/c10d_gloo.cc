// Gloo through c10d. Connections are made when a group is opened, all groups share one device (one I/O thread): Gloo's lazy
// connections need a device per group, and closing one lazy group stops the device.
#include "comm/c10d_store.h"
#include "comm/transport.h"

#include "base/errors.h"

#include <ATen/ops/empty.h>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <algorithm>
#include <numeric>

namespace orthant {
namespace {

using WorkPtr = c10::intrusive_ptr<c10d::Work>;
using GlooOptions = c10d::ProcessGroupGloo::Options;

std::chrono::milliseconds milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

// c10d's group, with a way to break it off: Gloo itself can only wait for its timeout.
class Breakable : public c10d::ProcessGroupGloo {
 public:
  using ProcessGroupGloo::ProcessGroupGloo;
  void close() {
    for (const auto& context : contexts_) context->closeConnections();
  }
};

class GlooWork : public Pending {
 public:
  explicit GlooWork(WorkPtr work) : work_(std::move(work)) {}
  void wait() override { work_->wait(); }
  bool done() override { return work_->isCompleted(); }

 private:
  WorkPtr work_;
};

std::unique_ptr<Pending> pending(WorkPtr work) { return std::make_unique<GlooWork>(std::move(work)); }

at::Tensor as_bytes(const at::Tensor& tensor) { return tensor.detach().view(-1).view(at::kByte); }

std::vector<int64_t> in_bytes(std::span<const int64_t> counts, const at::Tensor& tensor) {
  std::vector<int64_t> bytes(counts.begin(), counts.end());
  for (auto& count : bytes) count *= tensor.element_size();
  return bytes;
}

// Everybody's chunks of one shard, received by an all-to-all; summed when waited for, in order of position, and narrow
// floats in float32. (Gloo's own reduce-scatter is a whole all-reduce.)
class ReduceScatterWork : public Pending {
 public:
  ReduceScatterWork(WorkPtr exchange, at::Tensor chunks, at::Tensor output)
      : exchange_(std::move(exchange)), chunks_(std::move(chunks)), output_(std::move(output)) {}
  void wait() override {
    exchange_->wait();
    const bool narrow = output_.scalar_type() == at::kBFloat16 || output_.scalar_type() == at::kHalf;
    at::Tensor sum = narrow ? chunks_[0].to(at::kFloat) : chunks_[0];
    for (int64_t i = 1; i < chunks_.size(0); ++i) sum.add_(chunks_[i]);
    output_.copy_(sum);
    chunks_.reset();
  }
  bool done() override { return exchange_->isCompleted(); }

 private:
  WorkPtr exchange_;
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
  bool done() override { return size() == 2 && receive_->isCompleted() && send_->isCompleted(); }

 private:
  static constexpr int kTag = 1 << 30;
  int size() const { return group_.getSize(); }
  at::Tensor& shard(int back) { return shards_[static_cast<size_t>((group_.getRank() - back + size()) % size())]; }
  void post() {
    if (step_ == size() - 1) return;
    std::vector<at::Tensor> out{shard(step_)}, in{shard(step_ + 1)};
    receive_ = group_.recv(in, (group_.getRank() + size() - 1) % size(), kTag);
    send_ = group_.send(out, (group_.getRank() + 1) % size(), kTag);
  }

  c10d::Backend& group_;
  std::vector<at::Tensor> shards_;
  int step_ = 0;
  WorkPtr send_, receive_;
};

class GlooGroup : public Group {
 public:
  explicit GlooGroup(c10::intrusive_ptr<Breakable> group) : group_(std::move(group)) {}

  std::unique_ptr<Pending> all_reduce(const at::Tensor& tensor) override {
    std::vector<at::Tensor> tensors{tensor.detach().view(-1)};
    return pending(group_->allreduce(tensors));
  }

  std::unique_ptr<Pending> reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                                          std::span<const int64_t> counts) override {
    const auto mine = output.numel();
    at::Tensor chunks = at::empty({group_->getSize(), mine}, output.options().requires_grad(false));
    at::Tensor to = as_bytes(chunks), from = as_bytes(input);
    std::vector<int64_t> received(static_cast<size_t>(group_->getSize()), mine * output.element_size());
    auto sent = in_bytes(counts, input);
    WorkPtr exchange = group_->alltoall_base(to, from, received, sent);
    return std::make_unique<ReduceScatterWork>(std::move(exchange), std::move(chunks), output.detach().view(-1));
  }

  std::unique_ptr<Pending> all_gather(const at::Tensor& output, const at::Tensor& input,
                                      std::span<const int64_t> counts) override {
    at::Tensor to = as_bytes(output), from = as_bytes(input);
    if (std::all_of(counts.begin(), counts.end(), [&](int64_t count) { return count == counts[0]; })) {
      return pending(group_->_allgather_base(to, from));
    }
    const auto bytes = in_bytes(counts, output);
    const auto before = std::accumulate(bytes.begin(), bytes.begin() + group_->getRank(), int64_t{0});
    to.narrow(0, before, from.numel()).copy_(from);
    return std::make_unique<RingAllGather>(*group_, to, bytes);
  }

  std::unique_ptr<Pending> all_to_all(const at::Tensor& output, const at::Tensor& input,
                                      std::span<const int64_t> output_counts,
                                      std::span<const int64_t> input_counts) override {
    at::Tensor to = as_bytes(output), from = as_bytes(input);
    auto received = in_bytes(output_counts, output), sent = in_bytes(input_counts, input);
    return pending(group_->alltoall_base(to, from, received, sent));
  }

  std::unique_ptr<Pending> broadcast(const at::Tensor& tensor, int root) override {
    std::vector<at::Tensor> tensors{as_bytes(tensor)};
    c10d::BroadcastOptions options;
    options.rootRank = root;
    return pending(group_->broadcast(tensors, options));
  }

  std::unique_ptr<Pending> send(const at::Tensor& tensor, int to, int tag) override {
    std::vector<at::Tensor> tensors{as_bytes(tensor)};
    return pending(group_->send(tensors, to, tag));
  }

  std::unique_ptr<Pending> recv(const at::Tensor& tensor, int from, int tag) override {
    std::vector<at::Tensor> tensors{as_bytes(tensor)};
    return pending(group_->recv(tensors, from, tag));
  }

  std::unique_ptr<Pending> barrier() override { return pending(group_->barrier()); }

  void interrupt() noexcept override {
    try {
      group_->close();
    } catch (...) {  // already broken: that is what was wanted
    }
  }

 private:
  c10::intrusive_ptr<Breakable> group_;
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
        c10::make_intrusive<Breakable>(store.handle().board, position, size, std::move(options)));
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
