// NCCL through c10d, for tensors of one CUDA device. A build without CUDA reports here that it has no NCCL. A group
// issues all operations in order on one stream and one communicator, connected when the group is opened. c10d's lazy
// communicators of two ranks would deadlock in a circular wait when ranks pass messages along a ring.
#include "comm/group.h"

#ifdef ORTHANT_CUDA

#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAGuard.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <stdexcept>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "base/errors.h"
#include "launch/c10d_store.h"

namespace orthant {
namespace {

using WorkPtr = c10::intrusive_ptr<c10d::Work>;
using c10d::ProcessGroupNCCL;

// c10d reads these variables from the environment only, so they are set before main() and its threads; a user's own
// values stay. By default, c10d's watchdog ends the process when an operation fails. Here it only reports the failure,
// and Comm informs all ranks.
[[maybe_unused]] const bool kWatchdogOnlyNotices = [] {
  constexpr int kKeep = 0;
  setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0", kKeep);
  setenv("TORCH_NCCL_DUMP_ON_TIMEOUT", "0", kKeep);
  return true;
}();

at::Tensor flat(const at::Tensor& tensor) { return tensor.detach().view(-1); }
// For operations that only move data and do not add.
at::Tensor flat_bytes(const at::Tensor& tensor) { return flat(tensor).view(at::kByte); }

// output = the sum of the rows of `chunks`, in order. Like ordered_sum(), it adds narrow floats in float32 and rounds
// once. May write into `chunks`.
void sum_in_order(const at::Tensor& chunks, const at::Tensor& output) {
  const bool narrow = output.scalar_type() == at::kBFloat16 || output.scalar_type() == at::kHalf;
  at::Tensor sum = narrow ? chunks[0].to(at::kFloat) : chunks[0];
  for (int64_t i = 1; i < chunks.size(0); ++i) sum.add_(chunks[i]);
  output.copy_(sum);
}

// An operation on the group's stream. c10d keeps its tensors alive until wait().
class Enqueued : public Pending {
 public:
  explicit Enqueued(WorkPtr work) : work_(std::move(work)) {}
  void wait() override {
    if (cancelled_) throw std::runtime_error("the wait was cancelled");
    work_->wait();
  }
  bool done() override { return work_->isCompleted(); }
  void cancel() noexcept override { cancelled_ = true; }

 private:
  WorkPtr work_;
  std::atomic<bool> cancelled_ = false;
};

// A reduce-scatter as an all-to-all of chunks, whose sum runs on the stream that waits. NCCL's own reduce-scatter sends
// the same bytes. However, it sums in an order that depends on the ring, and rounds bf16 at each hop.
class ReduceScatter : public Enqueued {
 public:
  ReduceScatter(WorkPtr exchange, at::Tensor chunks, at::Tensor output)
      : Enqueued(std::move(exchange)), chunks_(std::move(chunks)), output_(std::move(output)) {}
  void wait() override {
    Enqueued::wait();
    if (!chunks_.defined()) return;  // an earlier wait() has summed already
    sum_in_order(chunks_, output_);
    chunks_.reset();
  }

 private:
  at::Tensor chunks_, output_;
};

// An operation without any data to send or receive.
struct Nothing : Pending {
  void wait() override {}
  bool done() override { return true; }
  void cancel() noexcept override {}
};

class NcclGroup : public Group {
 public:
  NcclGroup(c10::intrusive_ptr<ProcessGroupNCCL> group, at::Device device, OnLost on_lost)
      : group_(std::move(group)), device_(device), on_lost_(std::move(on_lost)) {}

  // Shuts down here, because c10d's destructor may run after the CUDA driver is gone. All ranks end the communicator
  // together.
  ~NcclGroup() override {
    try {
      const c10::cuda::CUDAGuard guard(device_);
      c10::cuda::device_synchronize();
      group_->shutdown();
    } catch (const std::exception&) {  // every operation was waited for, so no result depends on the shutdown
    }
  }

  std::unique_ptr<Pending> all_reduce(const at::Tensor& tensor, int64_t maxima) override {
    ORTHANT_CHECK(maxima == 0, maxima);
    std::vector<at::Tensor> tensors{flat(on_device(tensor))};
    return enqueued(group_->allreduce(tensors));
  }

  std::unique_ptr<Pending> all_reduce_by_tree(const at::Tensor& tensor, int64_t maxima) override {
    return all_reduce(tensor, maxima);
  }

  std::unique_ptr<Pending> reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                                          std::span<const int64_t> counts) override {
    const auto mine = output.numel();
    at::Tensor chunks = at::empty({group_->getSize(), mine}, on_device(output).options().requires_grad(false));
    at::Tensor to = flat_bytes(chunks), from = flat_bytes(on_device(input));
    std::vector<int64_t> received(static_cast<size_t>(group_->getSize()), mine * output.element_size());
    auto sent = counts_in_bytes(counts, input);
    WorkPtr exchange = noticed(group_->alltoall_base(to, from, received, sent));
    return std::make_unique<ReduceScatter>(std::move(exchange), std::move(chunks), flat(output));
  }

  std::unique_ptr<Pending> all_gather(const at::Tensor& output, const at::Tensor& input,
                                      std::span<const int64_t> counts) override {
    at::Tensor to = flat_bytes(on_device(output)), from = flat_bytes(on_device(input));
    const bool equal = std::all_of(counts.begin(), counts.end(), [&](int64_t count) { return count == counts[0]; });
    if (equal) return enqueued(group_->_allgather_base(to, from));
    // Shards of different size: one broadcast from each position, all in one launch.
    const auto shards = to.split_with_sizes(counts_in_bytes(counts, output));
    return together(c10d::OpType::ALLGATHER, [&] {
      for (int i = 0; i < group_->getSize(); ++i) {
        at::Tensor shard = shards[static_cast<size_t>(i)];
        if (shard.numel() == 0) continue;
        c10d::BroadcastOptions options;
        options.rootRank = i;
        group_->_broadcast_oop(shard, i == group_->getRank() ? from : shard, options);
      }
    });
  }

  std::unique_ptr<Pending> all_to_all(const at::Tensor& output, const at::Tensor& input,
                                      std::span<const int64_t> output_counts,
                                      std::span<const int64_t> input_counts) override {
    at::Tensor to = flat_bytes(on_device(output)), from = flat_bytes(on_device(input));
    auto received = counts_in_bytes(output_counts, output), sent = counts_in_bytes(input_counts, input);
    return enqueued(group_->alltoall_base(to, from, received, sent));
  }

  std::unique_ptr<Pending> broadcast(const at::Tensor& tensor, int root) override {
    std::vector<at::Tensor> tensors{flat_bytes(on_device(tensor))};
    c10d::BroadcastOptions options;
    options.rootRank = root;
    return enqueued(group_->broadcast(tensors, options));
  }

  // Gathers the tensors of all members at the root, which sums them as reduce_scatter() does.
  std::unique_ptr<Pending> reduce(const at::Tensor& tensor, int root) override {
    return reduce_in_chunks(tensor, root, {});
  }

  std::unique_ptr<Pending> reduce_in_chunks(const at::Tensor& tensor, int root, const StartAfter& after) override {
    if (after.operation != nullptr) after.operation->wait();  // blocks the stream, not the host
    if (after.make) after.make();
    const bool here = group_->getRank() == root;
    const at::Tensor input = flat(on_device(tensor));
    at::Tensor chunks = at::empty({here ? group_->getSize() : 0, input.numel()}, input.options());
    std::vector<int64_t> received(static_cast<size_t>(group_->getSize()), here ? input.nbytes() : 0), sent(received);
    std::fill(sent.begin(), sent.end(), 0);
    sent[static_cast<size_t>(root)] = static_cast<int64_t>(input.nbytes());
    at::Tensor to = flat_bytes(chunks), from = flat_bytes(input);
    WorkPtr gather = noticed(group_->alltoall_base(to, from, received, sent));
    if (!here) return std::make_unique<Enqueued>(std::move(gather));
    return std::make_unique<ReduceScatter>(std::move(gather), std::move(chunks), input);
  }

  std::unique_ptr<Pending> exchange(std::span<const Transfer> transfers) override {
    return together(c10d::OpType::COALESCED, [&] {
      for (const Transfer& transfer : transfers) {
        std::vector<at::Tensor> tensors{flat_bytes(on_device(transfer.tensor))};
        if (tensors[0].numel() == 0) continue;
        if (transfer.receive) {
          group_->recv(tensors, transfer.peer, transfer.tag);
        } else {
          group_->send(tensors, transfer.peer, transfer.tag);
        }
      }
    });
  }

  std::unique_ptr<Pending> barrier() override {
    c10d::BarrierOptions options;
    options.device = device_;
    return enqueued(group_->barrier(options));
  }

 private:
  const at::Tensor& on_device(const at::Tensor& tensor) const {
    ORTHANT_CHECK(tensor.device() == device_, tensor.device().str(), device_.str());
    return tensor;
  }

  // Runs `issue` and launches the operations that it issues together, so that none waits for another.
  template <typename Issue>
  std::unique_ptr<Pending> together(c10d::OpType kind, const Issue& issue) {
    group_->startCoalescing();
    issue();
    WorkPtr work = group_->endCoalescing(kind);
    if (!work) return std::make_unique<Nothing>();
    return enqueued(std::move(work));
  }

  std::unique_ptr<Pending> enqueued(WorkPtr work) { return std::make_unique<Enqueued>(noticed(std::move(work))); }

  // Reports the operation's failure. c10d's watchdog completes this future on its own thread, when the operation has
  // ended on the device or timed out.
  WorkPtr noticed(WorkPtr work) {
    const std::string name = c10d::opTypeToString(work->retrieveOpType());
    work->getFutureResult()->addCallback([on_lost = on_lost_, name](c10::ivalue::Future& result) {
      const auto value = result.hasError() ? c10d::WorkResult::UNKNOWN
                                           : static_cast<c10d::WorkResult>(result.constValue().toInt());
      if (value == c10d::WorkResult::SUCCESS) return;
      const bool late = value == c10d::WorkResult::TIMEOUT;
      on_lost(fmt::format("NCCL's {} {}", name, late ? "has not completed in time" : "failed on the device"));
    });
    return work;
  }

  c10::intrusive_ptr<ProcessGroupNCCL> group_;
  const at::Device device_;
  const OnLost on_lost_;
};

}  // namespace

bool has_nccl() { return true; }

std::unique_ptr<Group> nccl_group(at::Device device, const Store& store, int position, int size, double timeout_s,
                                  OnLost on_lost) {
  ORTHANT_CHECK(device.is_cuda() && device.has_index(), device.str());
  const c10::cuda::CUDAGuard guard(device);
  auto options = ProcessGroupNCCL::Options::create(/*is_high_priority_stream=*/true);
  options->timeout = std::chrono::milliseconds(static_cast<int64_t>(timeout_s * 1000));
  // Uses a separate connection to the store, because c10d's threads use it too.
  auto group = c10::make_intrusive<ProcessGroupNCCL>(store.clone().handle().store, position, size, options);
  group->setBoundDeviceId(device);
  group->eagerConnectSingleDevice(device);
  return std::make_unique<NcclGroup>(std::move(group), device, std::move(on_lost));
}

}  // namespace orthant

#else

#include "base/errors.h"

namespace orthant {

bool has_nccl() { return false; }

std::unique_ptr<Group> nccl_group(at::Device device, const Store&, int, int, double, OnLost) {
  throw LogicError(
      fmt::format("a tensor on {} cannot be sent: this build of Orthant has no NCCL. Build it with "
                  "make build CUDA=1, or keep tensors on the CPU",
                  device.str()));
}

}  // namespace orthant

#endif
