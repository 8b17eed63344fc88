// Copies the tensors of each operation to host memory and its results back.
#include "comm/staged_group.h"

#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>

#include <mutex>
#include <utility>

#include "base/errors.h"

namespace orthant {
namespace {

at::Tensor host_memory_for(const at::Tensor& tensor) {
  const auto options = tensor.options().requires_grad(false).device(at::kCPU);
  return at::empty(tensor.sizes(), options.pinned_memory(tensor.is_cuda()));
}

at::Tensor copy_to_host(const at::Tensor& tensor) { return host_memory_for(tensor).copy_(tensor.detach()); }

// The results of an operation in host memory, and the tensors that receive them.
class Results {
 public:
  at::Tensor add(const at::Tensor& tensor, at::Tensor host) {
    copies_.emplace_back(tensor.detach(), host);
    return host;
  }
  // Only the first call copies. May be called from any thread.
  void copy_back() {
    std::call_once(done_, [&] {
      for (auto& [tensor, host] : copies_) tensor.copy_(host, /*non_blocking=*/true);
    });
  }

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> copies_;
  std::once_flag done_;
};

class StagedOperation : public Pending {
 public:
  StagedOperation(std::unique_ptr<Pending> host, std::shared_ptr<Results> results)
      : host_(std::move(host)), results_(std::move(results)) {}
  void wait() override {
    host_->wait();
    results_->copy_back();
  }
  bool done() override { return host_->done(); }
  bool poll() override { return host_->poll(); }
  void cancel() noexcept override { host_->cancel(); }
  std::optional<Moved> moved_bytes() const override { return host_->moved_bytes(); }

  Pending* host() const { return host_.get(); }
  const std::shared_ptr<Results>& results() const { return results_; }

 private:
  std::unique_ptr<Pending> host_;
  std::shared_ptr<Results> results_;
};

class StagedGroup : public Group {
 public:
  StagedGroup(std::unique_ptr<Group> host, int position) : host_(std::move(host)), position_(position) {}

  std::unique_ptr<Pending> all_reduce(const at::Tensor& tensor, int64_t maxima) override {
    return in_place(tensor, true, [&](const at::Tensor& host) { return host_->all_reduce(host, maxima); });
  }

  std::unique_ptr<Pending> all_reduce_by_tree(const at::Tensor& tensor, int64_t maxima) override {
    return in_place(tensor, true, [&](const at::Tensor& host) { return host_->all_reduce_by_tree(host, maxima); });
  }

  std::unique_ptr<Pending> reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                                          std::span<const int64_t> counts) override {
    return into(output, input,
                [&](const at::Tensor& out, const at::Tensor& in) { return host_->reduce_scatter(out, in, counts); });
  }

  std::unique_ptr<Pending> all_gather(const at::Tensor& output, const at::Tensor& input,
                                      std::span<const int64_t> counts) override {
    return into(output, input,
                [&](const at::Tensor& out, const at::Tensor& in) { return host_->all_gather(out, in, counts); });
  }

  std::unique_ptr<Pending> all_to_all(const at::Tensor& output, const at::Tensor& input,
                                      std::span<const int64_t> output_counts,
                                      std::span<const int64_t> input_counts) override {
    return into(output, input, [&](const at::Tensor& out, const at::Tensor& in) {
      return host_->all_to_all(out, in, output_counts, input_counts);
    });
  }

  std::unique_ptr<Pending> broadcast(const at::Tensor& tensor, int root) override {
    return in_place(tensor, position_ != root, [&](const at::Tensor& host) { return host_->broadcast(host, root); });
  }

  std::unique_ptr<Pending> reduce(const at::Tensor& tensor, int root) override {
    return in_place(tensor, position_ == root, [&](const at::Tensor& host) { return host_->reduce(host, root); });
  }

  // The copy to host memory follows `make`, on whichever thread runs it.
  std::unique_ptr<Pending> reduce_in_chunks(const at::Tensor& tensor, int root, const StartAfter& after) override {
    const at::Tensor host = host_memory_for(tensor);
    const auto results = std::make_shared<Results>();
    if (position_ == root) results->add(tensor, host);
    StartAfter host_after;
    std::shared_ptr<Results> needed;
    if (after.operation != nullptr) {
      const auto& before = dynamic_cast<StagedOperation&>(*after.operation);
      host_after.operation = before.host();
      needed = before.results();
    }
    host_after.make = [tensor, host, needed, make = after.make] {
      const c10::DeviceGuard guard(tensor.device());
      if (needed) needed->copy_back();
      if (make) make();
      host.copy_(tensor.detach());
    };
    return std::make_unique<StagedOperation>(host_->reduce_in_chunks(host, root, host_after), results);
  }

  std::unique_ptr<Pending> exchange(std::span<const Transfer> transfers) override {
    const auto results = std::make_shared<Results>();
    std::vector<Transfer> staged;
    for (const Transfer& transfer : transfers) staged.push_back(stage(transfer, *results));
    return std::make_unique<StagedOperation>(host_->exchange(staged), results);
  }

  std::unique_ptr<Pending> message(const Transfer& transfer) override {
    const auto results = std::make_shared<Results>();
    const Transfer staged = stage(transfer, *results);
    return std::make_unique<StagedOperation>(host_->message(staged), results);
  }

  std::unique_ptr<Pending> barrier() override {
    return std::make_unique<StagedOperation>(host_->barrier(), std::make_shared<Results>());
  }

 private:
  template <typename Start>
  std::unique_ptr<Pending> in_place(const at::Tensor& tensor, bool changes, const Start& start) {
    const auto results = std::make_shared<Results>();
    const at::Tensor host = copy_to_host(tensor);
    if (changes) results->add(tensor, host);
    return std::make_unique<StagedOperation>(start(host), results);
  }

  template <typename Start>
  std::unique_ptr<Pending> into(const at::Tensor& output, const at::Tensor& input, const Start& start) {
    const auto results = std::make_shared<Results>();
    const at::Tensor out = results->add(output, host_memory_for(output));
    return std::make_unique<StagedOperation>(start(out, copy_to_host(input)), results);
  }

  static Transfer stage(const Transfer& transfer, Results& results) {
    Transfer staged = transfer;
    staged.tensor = transfer.receive ? results.add(transfer.tensor, host_memory_for(transfer.tensor))
                                     : copy_to_host(transfer.tensor);
    return staged;
  }

  std::unique_ptr<Group> host_;
  const int position_;
};

}  // namespace

std::unique_ptr<Group> staged_group(std::unique_ptr<Group> host, int position) {
  return std::make_unique<StagedGroup>(std::move(host), position);
}

}  // namespace orthant
