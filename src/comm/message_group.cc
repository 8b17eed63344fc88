// Runs each operation of a group as a job of the engine, under a message tag of its own.
#include "comm/message_group.h"

#include <map>
#include <utility>

#include "base/errors.h"
#include "comm/collectives.h"

namespace orthant {
namespace {

// Up to this size, waking the background thread costs more than it gains. Messages posted at the start have left
// already, and the rest is done while this rank waits for the operation.
constexpr int64_t kForegroundBytes = 64 << 10;

constexpr uint32_t kUserBit = kUserTags;
static_assert(uint64_t{kGroups} * 2 * kUserTags == uint64_t{1} << kTagBits);

Bytes memory_of(const at::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.data_ptr()), static_cast<size_t>(tensor.numel() * tensor.element_size())};
}

class StartedMessages : public Pending {
 public:
  StartedMessages(Engine& engine, std::vector<at::Tensor> tensors, std::shared_ptr<Job> job)
      : engine_(engine), job_(std::move(job)), tensors_(std::move(tensors)) {}
  void wait() override { engine_.wait(*job_); }
  bool done() override { return job_->done; }
  bool poll() override { return engine_.poll(*job_); }
  void cancel() noexcept override { engine_.cancel(); }
  std::optional<Moved> moved_bytes() const override { return job_->moved_bytes; }
  const std::shared_ptr<Job>& job() { return job_; }

 private:
  Engine& engine_;
  std::shared_ptr<Job> job_;
  std::vector<at::Tensor> tensors_;
};

class MessageGroup : public Group {
 public:
  MessageGroup(Engine& engine, std::vector<int> ranks, int position, uint32_t number,
               const MessageGroupOptions& options)
      : engine_(engine), ranks_(std::move(ranks)), position_(position), number_(number), options_(options) {
    ORTHANT_CHECK(number < kGroups, number);
  }

  // Each body owns its arguments, because it may run after the call has returned.
  std::unique_ptr<Pending> all_reduce(const at::Tensor& tensor, int64_t maxima) override {
    return start(MessageKind::all_reduce, {tensor}, [memory = memory_of(tensor), maxima](Peers peers) {
      return orthant::all_reduce(peers, memory, maxima);
    });
  }

  std::unique_ptr<Pending> all_reduce_by_tree(const at::Tensor& tensor, int64_t maxima) override {
    return start(MessageKind::all_reduce_by_tree, {tensor},
                 [memory = memory_of(tensor), maxima](Peers peers) {
                   return orthant::all_reduce_by_tree(peers, memory, maxima);
                 });
  }

  std::unique_ptr<Pending> reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                                          std::span<const int64_t> counts) override {
    const auto body = [out = memory_of(output), in = memory_of(input), bytes = counts_in_bytes(counts, input)](
                          Peers peers) { return orthant::reduce_scatter(peers, out, in, bytes); };
    return start(MessageKind::reduce_scatter, {output, input}, body);
  }

  std::unique_ptr<Pending> all_gather(const at::Tensor& output, const at::Tensor& input,
                                      std::span<const int64_t> counts) override {
    const auto body = [out = memory_of(output), in = memory_of(input), bytes = counts_in_bytes(counts, output)](
                          Peers peers) { return orthant::all_gather(peers, out, in, bytes); };
    return start(MessageKind::all_gather, {output, input}, body);
  }

  std::unique_ptr<Pending> all_to_all(const at::Tensor& output, const at::Tensor& input,
                                      std::span<const int64_t> output_counts,
                                      std::span<const int64_t> input_counts) override {
    const auto body = [out = memory_of(output), in = memory_of(input),
                       received = counts_in_bytes(output_counts, output), sent = counts_in_bytes(input_counts, input)](
                          Peers peers) { return orthant::all_to_all(peers, out, in, received, sent); };
    return start(MessageKind::all_to_all, {output, input}, body);
  }

  std::unique_ptr<Pending> broadcast(const at::Tensor& tensor, int root) override {
    return start(MessageKind::broadcast, {tensor},
                 [memory = memory_of(tensor), root](Peers peers) { return orthant::broadcast(peers, memory, root); });
  }

  std::unique_ptr<Pending> reduce(const at::Tensor& tensor, int root) override {
    return start(MessageKind::reduce, {tensor},
                 [memory = memory_of(tensor), root](Peers peers) { return orthant::reduce(peers, memory, root); });
  }

  std::unique_ptr<Pending> reduce_in_chunks(const at::Tensor& tensor, int root, const StartAfter& after) override {
    const auto body = [memory = memory_of(tensor), root, make = after.make](Peers peers) {
      if (make) make();
      return orthant::reduce_in_chunks(peers, memory, root);
    };
    Jobs predecessors;
    if (after.operation != nullptr) predecessors.push_back(dynamic_cast<StartedMessages&>(*after.operation).job());
    return start(MessageKind::reduce_in_chunks, {tensor}, body, std::move(predecessors));
  }

  std::unique_ptr<Pending> exchange(std::span<const Transfer> transfers) override {
    return exchange_on(kWholeGroup, transfers);
  }

  std::unique_ptr<Pending> message(const Transfer& transfer) override {
    return exchange_on({transfer.receive, transfer.peer}, {&transfer, 1});
  }

  std::unique_ptr<Pending> barrier() override {
    return start(MessageKind::barrier, {}, [&](Peers peers) { return orthant::barrier(peers); });
  }

 private:
  // The part of a group for which NCCL has a communicator: single messages to a position (false), single messages from
  // it (true), or all other operations.
  using Communicator = std::pair<bool, int>;
  static constexpr Communicator kWholeGroup = {false, -1};

  std::unique_ptr<Pending> exchange_on(const Communicator& communicator, std::span<const Transfer> transfers) {
    std::vector<at::Tensor> tensors;
    std::vector<Part> parts;
    for (const Transfer& transfer : transfers) {
      tensors.push_back(transfer.tensor);
      parts.push_back({transfer.peer, transfer.receive, tag(kUserBit + static_cast<uint32_t>(transfer.tag)),
                       transfer.tensor.scalar_type(), memory_of(transfer.tensor)});
    }
    return run(std::move(tensors), [this, parts](Job& job) { return exchange_all(job, parts); }, {}, communicator);
  }

  struct Part {
    int peer;
    bool receive;
    uint32_t tag;
    at::ScalarType type;
    Bytes memory;
  };

  // In order, the receiver of a message confirms it, and the sender waits for that.
  Task exchange_all(Job& job, std::vector<Part> parts) {
    const auto sides_with_tag = [&](uint32_t tag, at::ScalarType type) {
      return Peers(engine_, job, ranks_, position_, tag, {MessageKind::exchange, type});
    };
    const Peers confirming = sides_with_tag(tag(kUserBit + kConfirmationTag), at::kByte);
    std::vector<std::pair<Posted, int>> receives;
    std::vector<Posted> others;
    for (const Part& part : parts) {
      if (part.receive)
        receives.emplace_back(sides_with_tag(part.tag, part.type).receive(part.peer, part.memory), part.peer);
    }
    for (const Part& part : parts) {
      if (part.receive) continue;
      others.push_back(sides_with_tag(part.tag, part.type).send(part.peer, part.memory));
      if (options_.in_order) others.push_back(confirming.receive(part.peer, {}));
    }
    for (auto& [posted, peer] : receives) {
      co_await posted;
      if (options_.in_order) others.push_back(confirming.send(peer, {}));
    }
    for (Posted& posted : others) co_await posted;
  }

  uint32_t tag(uint32_t low) const { return number_ * 2 * kUserTags + low; }

  std::unique_ptr<Pending> run(std::vector<at::Tensor> tensors, const std::function<Task(Job&)>& body,
                               Jobs predecessors, const Communicator& communicator) {
    int64_t bytes = 0;
    for (const at::Tensor& tensor : tensors) bytes += tensor.numel() * tensor.element_size();
    const bool in_background = options_.is_channel || options_.in_order || bytes > kForegroundBytes;
    if (!options_.in_order)
      return std::make_unique<StartedMessages>(engine_, std::move(tensors),
                                               engine_.start(in_background, body, predecessors));
    std::shared_ptr<Job>& last = last_of_[communicator];
    if (last) predecessors.push_back(last);
    last = engine_.start(in_background, body, predecessors);
    return std::make_unique<StartedMessages>(engine_, std::move(tensors), last);
  }

  // The tag numbers the operations of a group, which distinguishes those that overlap. The number wraps around at 2^19,
  // long after the earlier operation has ended.
  std::unique_ptr<Pending> start(MessageKind kind, std::vector<at::Tensor> tensors,
                                 const std::function<Task(Peers)>& body, Jobs predecessors = {}) {
    const uint32_t operation_tag = tag(next_++ % kUserTags);
    const MessageSignature signature{kind, tensors.empty() ? at::kByte : tensors[0].scalar_type()};
    const auto task = [this, body, operation_tag, signature](Job& job) {
      return body(Peers(engine_, job, ranks_, position_, operation_tag, signature));
    };
    return run(std::move(tensors), task, std::move(predecessors), kWholeGroup);
  }

  Engine& engine_;
  const std::vector<int> ranks_;
  const int position_;
  const uint32_t number_;
  const MessageGroupOptions options_;
  uint32_t next_ = 0;
  std::map<Communicator, std::shared_ptr<Job>> last_of_;  // in order: the last operation posted
};

}  // namespace

std::unique_ptr<Group> message_group(Engine& engine, std::vector<int> ranks, int position, uint32_t number,
                                     const MessageGroupOptions& options) {
  return std::make_unique<MessageGroup>(engine, std::move(ranks), position, number, options);
}

}  // namespace orthant
