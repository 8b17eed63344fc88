// Runs each operation of a group as a job of the engine, under a message tag of its own.
#include "comm/message_group.h"

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

class Underway : public Pending {
 public:
  Underway(Engine& engine, std::vector<at::Tensor> tensors, std::shared_ptr<Job> job)
      : engine_(engine), job_(std::move(job)), tensors_(std::move(tensors)) {}
  void wait() override { engine_.wait(*job_); }
  bool done() override { return job_->done; }
  bool soon() override { return engine_.soon(*job_); }
  void cancel() noexcept override { engine_.cancel(); }
  std::optional<Moved> moved_bytes() const override { return job_->moved_bytes; }
  Job* job() { return job_.get(); }

 private:
  Engine& engine_;
  std::shared_ptr<Job> job_;
  std::vector<at::Tensor> tensors_;
};

class MessageGroup : public Group {
 public:
  MessageGroup(Engine& engine, std::vector<int> ranks, int position, uint32_t number, bool is_channel)
      : engine_(engine), ranks_(std::move(ranks)), position_(position), number_(number), is_channel_(is_channel) {
    ORTHANT_CHECK(number < kGroups, number);
  }

  std::unique_ptr<Pending> all_reduce(const at::Tensor& tensor, int64_t maxima) override {
    return start(MessageKind::all_reduce, {tensor},
                 [&](Peers peers) { return orthant::all_reduce(peers, memory_of(tensor), maxima); });
  }

  std::unique_ptr<Pending> all_reduce_by_tree(const at::Tensor& tensor, int64_t maxima) override {
    return start(MessageKind::all_reduce_by_tree, {tensor},
                 [&](Peers peers) { return orthant::all_reduce_by_tree(peers, memory_of(tensor), maxima); });
  }

  std::unique_ptr<Pending> reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                                          std::span<const int64_t> counts) override {
    return start(MessageKind::reduce_scatter, {output, input}, [&](Peers peers) {
      return orthant::reduce_scatter(peers, memory_of(output), memory_of(input), counts_in_bytes(counts, input));
    });
  }

  std::unique_ptr<Pending> all_gather(const at::Tensor& output, const at::Tensor& input,
                                      std::span<const int64_t> counts) override {
    return start(MessageKind::all_gather, {output, input}, [&](Peers peers) {
      return orthant::all_gather(peers, memory_of(output), memory_of(input), counts_in_bytes(counts, output));
    });
  }

  std::unique_ptr<Pending> all_to_all(const at::Tensor& output, const at::Tensor& input,
                                      std::span<const int64_t> output_counts,
                                      std::span<const int64_t> input_counts) override {
    return start(MessageKind::all_to_all, {output, input}, [&](Peers peers) {
      return orthant::all_to_all(peers, memory_of(output), memory_of(input), counts_in_bytes(output_counts, output),
                                 counts_in_bytes(input_counts, input));
    });
  }

  std::unique_ptr<Pending> broadcast(const at::Tensor& tensor, int root) override {
    return start(MessageKind::broadcast, {tensor},
                 [&](Peers peers) { return orthant::broadcast(peers, memory_of(tensor), root); });
  }

  std::unique_ptr<Pending> reduce(const at::Tensor& tensor, int root) override {
    return start(MessageKind::reduce, {tensor},
                 [&](Peers peers) { return orthant::reduce(peers, memory_of(tensor), root); });
  }

  std::unique_ptr<Pending> reduce_in_chunks(const at::Tensor& tensor, int root, const StartAfter& after) override {
    const auto body = [memory = memory_of(tensor), root, make = after.make](Peers peers) {
      if (make) make();
      return orthant::reduce_in_chunks(peers, memory, root);
    };
    Job* predecessor = after.operation == nullptr ? nullptr : dynamic_cast<Underway&>(*after.operation).job();
    return start(MessageKind::reduce_in_chunks, {tensor}, body, predecessor);
  }

  std::unique_ptr<Pending> exchange(std::span<const Transfer> transfers) override {
    std::vector<at::Tensor> tensors;
    std::vector<Part> parts;
    for (const Transfer& transfer : transfers) {
      tensors.push_back(transfer.tensor);
      parts.push_back({transfer.peer, transfer.receive, tag(kUserBit + static_cast<uint32_t>(transfer.tag)),
                       transfer.tensor.scalar_type(), memory_of(transfer.tensor)});
    }
    return run(std::move(tensors), [&](Job& job) {
      return exchange_all(engine_, job, ranks_, position_, parts);
    });
  }

  std::unique_ptr<Pending> barrier() override {
    return start(MessageKind::barrier, {}, [&](Peers peers) { return orthant::barrier(peers); });
  }

 private:
  struct Part {
    int peer;
    bool receive;
    uint32_t tag;
    at::ScalarType type;
    Bytes memory;
  };

  static Task exchange_all(Engine& engine, Job& job, const std::vector<int>& ranks, int position,
                           std::vector<Part> parts) {
    std::vector<Posted> under_way;
    for (const bool receive : {true, false}) {
      for (const Part& part : parts) {
        if (part.receive != receive) continue;
        const Peers peers(engine, job, ranks, position, part.tag, {MessageKind::exchange, part.type});
        under_way.push_back(receive ? peers.receive(part.peer, part.memory) : peers.send(part.peer, part.memory));
      }
    }
    for (Posted& posted : under_way) co_await posted;
  }

  uint32_t tag(uint32_t low) const { return number_ * 2 * kUserTags + low; }

  std::unique_ptr<Pending> run(std::vector<at::Tensor> tensors, const std::function<Task(Job&)>& body,
                               Job* predecessor = nullptr) {
    int64_t bytes = 0;
    for (const at::Tensor& tensor : tensors) bytes += tensor.numel() * tensor.element_size();
    const bool in_background = is_channel_ || bytes > kForegroundBytes;
    return std::make_unique<Underway>(engine_, std::move(tensors), engine_.start(in_background, body, predecessor));
  }

  // The tag numbers the operations of a group, which distinguishes those that overlap. The number wraps around at 2^19,
  // long after the earlier operation has ended.
  std::unique_ptr<Pending> start(MessageKind kind, std::vector<at::Tensor> tensors,
                                 const std::function<Task(Peers)>& body, Job* predecessor = nullptr) {
    const uint32_t operation_tag = tag(next_++ % kUserTags);
    const MessageSignature signature{kind, tensors.empty() ? at::kByte : tensors[0].scalar_type()};
    const auto task = [this, body, operation_tag, signature](Job& job) {
      return body(Peers(engine_, job, ranks_, position_, operation_tag, signature));
    };
    return run(std::move(tensors), task, predecessor);
  }

  Engine& engine_;
  const std::vector<int> ranks_;
  const int position_;
  const uint32_t number_;
  const bool is_channel_;
  uint32_t next_ = 0;
};

}  // namespace

std::unique_ptr<Group> message_group(Engine& engine, std::vector<int> ranks, int position, uint32_t number,
                                     bool is_channel) {
  return std::make_unique<MessageGroup>(engine, std::move(ranks), position, number, is_channel);
}

}  // namespace orthant
