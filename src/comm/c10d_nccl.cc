// NCCL through c10d, for tensors of one CUDA device. A build without CUDA reports here that it has no NCCL. A group
// issues all operations in order on one stream and one communicator, connected when the group is opened. c10d's lazy
// communicators of two ranks would deadlock in a circular wait when ranks pass messages along a ring.
//
// Sums are formed in order of position, as those of the CPU (ordered_sum.h), from operations of NCCL that only move
// data. NCCL's own sums send the same bytes, but their order depends on its algorithm, and they round bf16 at each hop.
// Only all_reduce_by_tree() is NCCL's own, because its cost must not grow with the number of ranks.
#include "comm/group.h"

#ifdef ORTHANT_CUDA

#include <ATen/cuda/CUDAEvent.h>
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAGuard.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <optional>
#include <stdexcept>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "base/errors.h"
#include "launch/c10d_store.h"
#include "mesh/layout.h"

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
// once, and takes the largest of each of the last `maxima` columns. May write into `chunks`.
void sum_in_order(const at::Tensor& chunks, const at::Tensor& output, int64_t maxima = 0) {
  const int64_t sums = output.numel() - maxima;
  if (maxima > 0) output.narrow(0, sums, maxima).copy_(chunks.narrow(1, sums, maxima).amax(0));
  const bool narrow = output.scalar_type() == at::kBFloat16 || output.scalar_type() == at::kHalf;
  at::Tensor sum = narrow ? chunks[0].to(at::kFloat) : chunks[0];
  for (int64_t i = 1; i < chunks.size(0); ++i) sum.add_(chunks[i]);
  output.narrow(0, 0, sums).copy_(sum.narrow(0, 0, sums));
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

// An operation on another stream, whose end the event marks.
class EventOperation : public Pending {
 public:
  explicit EventOperation(at::cuda::CUDAEvent end) : end_(std::move(end)) {}
  void wait() override {
    if (cancelled_) throw std::runtime_error("the wait was cancelled");
    end_.block(c10::cuda::getCurrentCUDAStream());
  }
  bool done() override { return end_.query(); }
  void cancel() noexcept override { cancelled_ = true; }

 private:
  at::cuda::CUDAEvent end_;
  std::atomic<bool> cancelled_ = false;
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

  // A reduce_scatter, and an all_gather of its sums.
  std::unique_ptr<Pending> all_reduce(const at::Tensor& tensor, int64_t maxima) override {
    const at::Tensor all = flat(on_device(tensor));
    std::vector<int64_t> counts;
    for (int i = 0; i < group_->getSize(); ++i) counts.push_back(shard(all.numel(), group_->getSize(), i).size());
    const Range own = shard(all.numel(), group_->getSize(), group_->getRank());
    const int64_t own_maxima = std::clamp<int64_t>(own.end - (all.numel() - maxima), 0, own.size());
    return run_on_sum_stream([&] {
      const at::Tensor sum = at::empty({own.size()}, all.options());
      exchange_and_sum(sum, all, counts, own_maxima);
      return all_gather(all, sum, counts);
    });
  }

  std::unique_ptr<Pending> all_reduce_by_tree(const at::Tensor& tensor, int64_t maxima) override {
    const at::Tensor all = flat(on_device(tensor));
    return together(c10d::OpType::ALLREDUCE, [&] {
      std::vector<at::Tensor> sums{all.narrow(0, 0, all.numel() - maxima)},
          largest{all.narrow(0, sums[0].numel(), maxima)};
      if (sums[0].numel() > 0) group_->allreduce(sums);
      c10d::AllreduceOptions options;
      options.reduceOp = c10d::ReduceOp::MAX;
      if (maxima > 0) group_->allreduce(largest, options);
    });
  }

  std::unique_ptr<Pending> reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                                          std::span<const int64_t> counts) override {
    return run_on_sum_stream([&] {
      exchange_and_sum(flat(on_device(output)), on_device(input), counts);
      return record_end();
    });
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
    std::vector<int64_t> received(static_cast<size_t>(group_->getSize()), here ? input.nbytes() : 0), sent(received);
    std::fill(sent.begin(), sent.end(), 0);
    sent[static_cast<size_t>(root)] = static_cast<int64_t>(input.nbytes());
    at::Tensor from = flat_bytes(input);
    if (!here) {
      at::Tensor nothing = at::empty({0}, from.options());
      return enqueued(group_->alltoall_base(nothing, from, received, sent));
    }
    return run_on_sum_stream([&] {
      const at::Tensor chunks = at::empty({group_->getSize(), input.numel()}, input.options());
      at::Tensor to = flat_bytes(chunks);
      noticed(group_->alltoall_base(to, from, received, sent))->wait();
      sum_in_order(chunks, input);
      return record_end();
    });
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

  std::unique_ptr<Pending> message(const Transfer& transfer) override { return exchange({&transfer, 1}); }

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

  // Runs `issue` on the group's stream of sums, after the work that is already on the current stream. The host and the
  // current stream do not wait. A later sum may reuse the memory of the summands. The stream has normal priority; the
  // streams of NCCL come from the pool of high priority, in which each communicator needs one of its own.
  template <typename Issue>
  std::unique_ptr<Pending> run_on_sum_stream(const Issue& issue) {
    if (!sum_stream_) sum_stream_ = c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device_.index());
    at::cuda::CUDAEvent ready;
    ready.record();
    const c10::cuda::CUDAStreamGuard guard(*sum_stream_);
    ready.block(*sum_stream_);
    return issue();
  }

  // For an operation on the current stream.
  static std::unique_ptr<Pending> record_end() {
    at::cuda::CUDAEvent end;
    end.record();
    return std::make_unique<EventOperation>(std::move(end));
  }

  // An all-to-all of chunks, and the sum of those that arrive, on the current stream.
  void exchange_and_sum(const at::Tensor& output, const at::Tensor& input, std::span<const int64_t> counts,
                        int64_t maxima = 0) {
    const at::Tensor chunks = at::empty({group_->getSize(), output.numel()}, output.options().requires_grad(false));
    at::Tensor to = flat_bytes(chunks), from = flat_bytes(input);
    std::vector<int64_t> received(static_cast<size_t>(group_->getSize()), output.numel() * output.element_size());
    auto sent = counts_in_bytes(counts, input);
    noticed(group_->alltoall_base(to, from, received, sent))->wait();
    sum_in_order(chunks, output, maxima);
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
  std::optional<c10::cuda::CUDAStream> sum_stream_;  // from the first sum on
  const OnLost on_lost_;
};

}  // namespace

bool has_nccl() { return true; }

std::unique_ptr<Group> nccl_group(at::Device device, const Store& store, int position, int size, double timeout_s,
                                  OnLost on_lost) {
  ORTHANT_CHECK(device.is_cuda() && device.has_index(), device.str());
  const c10::cuda::CUDAGuard guard(device);
  auto options = ProcessGroupNCCL::Options::create(/*is_high_priority_stream=*/true);
  // c10d counts from the call, and the host may be a step ahead of the device.
  options->timeout = std::chrono::milliseconds(static_cast<int64_t>(2 * timeout_s * 1000));
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
