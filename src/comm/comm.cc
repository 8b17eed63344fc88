// Checks the arguments of operations, computes the bytes that they send and receive, and starts them on the group over
// the axes.
#include "comm/comm.h"

#include <ATen/OpMathType.h>

#include <algorithm>
#include <array>
#include <exception>
#include <numeric>

#include "base/errors.h"
#include "comm/comm_state.h"
#include "comm/message_group.h"
#include "comm/ordered_sum.h"
#include "comm/vector_math.h"
#include "launch/process.h"
#include "mesh/collective.h"

namespace orthant {
namespace {

void check(const at::Tensor& tensor) {
  ORTHANT_CHECK(tensor.defined() && tensor.layout() == at::kStrided && tensor.is_contiguous());
}

void check(const at::Tensor& output, const at::Tensor& input) {
  check(output);
  check(input);
  ORTHANT_CHECK(output.scalar_type() == input.scalar_type(), c10::toString(output.scalar_type()),
                c10::toString(input.scalar_type()));
  ORTHANT_CHECK(output.device() == input.device(), output.device().str(), input.device().str());
}

void check_sum(const at::Tensor& tensor) {
  check(tensor);
  ORTHANT_CHECK(has_sum(tensor.scalar_type()), c10::toString(tensor.scalar_type()));
}

void check_tag(int tag) { ORTHANT_CHECK(tag >= 0 && tag < kConfirmationTag, tag, kConfirmationTag); }

int64_t bytes_of(const at::Tensor& tensor) { return tensor.numel() * tensor.element_size(); }

// Bytes of this rank for an operation on the full tensor whose coordinates count from `root`.
Moved bytes_of(CollectiveKind kind, const at::Tensor& tensor, const OpenGroup& group, int root = 0) {
  const int place = (group.position - root + group.size()) % group.size();
  const int64_t elements[] = {tensor.numel()};
  return tensor.element_size() * elements_moved(kind, group.size(), place, elements);
}
int64_t at_position(std::span<const int64_t> counts, int position) { return counts[static_cast<size_t>(position)]; }

// Returns the given counts, or `total` split into equal parts if none are given.
std::vector<int64_t> counts_or_equal(Counts counts, int64_t total, int size) {
  if (counts.empty()) {
    ORTHANT_CHECK(total % size == 0, total, size);
    return std::vector<int64_t>(static_cast<size_t>(size), total / size);
  }
  ORTHANT_CHECK(static_cast<int>(counts.size()) == size && std::reduce(counts.begin(), counts.end()) == total,
                counts.size(), size, total);
  return {counts.begin(), counts.end()};
}

}  // namespace

bool in_order_by_environment() {
  const std::string value = process_environment("ORTHANT_IN_ORDER").value_or("0");
  if (value != "0" && value != "1") {
    throw ConfigError(fmt::format("the environment variable ORTHANT_IN_ORDER = {} must be 0 or 1", value));
  }
  return value == "1";
}

Work::Work() = default;
Work::Work(Work&&) noexcept = default;

Work& Work::operator=(Work&& other) noexcept {
  if (pending_ && this != &other) state_->keep(std::move(pending_));
  state_ = std::move(other.state_), pending_ = std::move(other.pending_);
  operation_ = other.operation_;
  return *this;
}

Work::~Work() {
  if (pending_) state_->keep(std::move(pending_));
}

void Work::wait() {
  if (pending_) state_->wait(*this);
}

bool Work::done() const { return !pending_ || pending_->done(); }

Comm::Comm(Mesh mesh, int rank, Rendezvous rendezvous, CommOptions options)
    : state_(std::make_shared<CommState>(std::move(mesh), rank, std::move(rendezvous), std::move(options))) {
  resolve_vector_math();
}

Comm::Comm(std::shared_ptr<CommState> state, int channel) : state_(std::move(state)), channel_(channel) {}

Comm::~Comm() {
  if (channel_ == 0) state_->close(std::uncaught_exceptions() > 0);
}

Comm Comm::channel(int number) const {
  ORTHANT_CHECK(channel_ == 0 && number > 0 && number < kNumChannels, channel_, number);
  return Comm(state_, number);
}

OpenGroup& Comm::open(const Axes& axes, at::Device device) const { return state_->open(axes, device, channel_); }

const Mesh& Comm::mesh() const { return state_->mesh; }
int Comm::rank() const { return state_->rank; }
int Comm::group_size(const Axes& axes) const { return state_->mesh.group_size(axes); }
int Comm::position(const Axes& axes) const { return state_->mesh.group_index(state_->rank, axes); }
std::string Comm::transport() const { return state_->engine ? state_->engine->transport().name() : ""; }
int Comm::num_connections() const { return state_->engine ? state_->engine->num_connections() : 0; }
void Comm::prepare(const Axes& axes, at::Device device) { open(axes, device); }

void Comm::prepare_messages(const Axes& axes, at::Device device, const std::set<std::pair<int, int>>& directions) {
  state_->open_directions(open(axes, device), device, directions);
}

Work Comm::all_reduce(const at::Tensor& tensor, const Axes& axes) {
  check_sum(tensor);
  OpenGroup& group = open(axes, tensor.device());
  if (group.size() == 1) return {};
  return state_->start({&group, "all_reduce", bytes_of(tensor)}, bytes_of(CollectiveKind::all_reduce, tensor, group),
                       [&](Group& g) { return g.all_reduce(tensor, 0); });
}

Work Comm::all_reduce_small(const at::Tensor& tensor, const Axes& axes, int64_t maxima) {
  check_sum(tensor);
  ORTHANT_CHECK(maxima == 0 || tensor.scalar_type() == at::kDouble, maxima);
  OpenGroup& group = open(axes, tensor.device());
  if (group.size() == 1) return {};
  const CollectiveKind kind = small_sum(group.size());
  const bool by_tree = kind == CollectiveKind::all_reduce_by_tree;
  const at::ScalarType type = tensor.scalar_type();
  ORTHANT_CHECK(!by_tree || at::toOpMathType(type) == type, c10::toString(type));
  return state_->start({&group, name_of(kind).data(), bytes_of(tensor)}, bytes_of(kind, tensor, group), [&](Group& g) {
    return by_tree ? g.all_reduce_by_tree(tensor, maxima) : g.all_reduce(tensor, maxima);
  });
}

Work Comm::reduce_scatter(const at::Tensor& output, const at::Tensor& input, const Axes& axes, Counts counts) {
  check(output, input);
  check_sum(output);
  OpenGroup& group = open(axes, output.device());
  const auto chunks = counts_or_equal(counts, input.numel(), group.size());
  ORTHANT_CHECK(output.numel() == at_position(chunks, group.position), output.numel(), group.position);
  if (group.size() == 1) return output.detach().copy_(input.detach().view_as(output)), Work();
  return state_->start({&group, "reduce_scatter", bytes_of(input)},
                       {bytes_of(input) - bytes_of(output), (group.size() - 1) * bytes_of(output)},
                       [&](Group& g) { return g.reduce_scatter(output, input, chunks); });
}

Work Comm::all_gather(const at::Tensor& output, const at::Tensor& input, const Axes& axes, Counts counts) {
  check(output, input);
  OpenGroup& group = open(axes, output.device());
  const auto shards = counts_or_equal(counts, output.numel(), group.size());
  ORTHANT_CHECK(input.numel() == at_position(shards, group.position), input.numel(), group.position);
  if (group.size() == 1) return output.detach().copy_(input.detach().view_as(output)), Work();
  const int64_t next = at_position(shards, (group.position + 1) % group.size());
  return state_->start({&group, "all_gather", bytes_of(output)},
                       output.element_size() * Moved{output.numel() - next, output.numel() - input.numel()},
                       [&](Group& g) { return g.all_gather(output, input, shards); });
}

Work Comm::all_to_all(const at::Tensor& output, const at::Tensor& input, const Axes& axes, Counts output_counts,
                      Counts input_counts) {
  check(output, input);
  OpenGroup& group = open(axes, output.device());
  const auto received = counts_or_equal(output_counts, output.numel(), group.size());
  const auto sent = counts_or_equal(input_counts, input.numel(), group.size());
  ORTHANT_CHECK(at_position(received, group.position) == at_position(sent, group.position));
  if (group.size() == 1) return output.detach().copy_(input.detach().view_as(output)), Work();
  const int64_t own = at_position(sent, group.position);
  return state_->start({&group, "all_to_all", bytes_of(input)},
                       input.element_size() * Moved{input.numel() - own, output.numel() - own},
                       [&](Group& g) { return g.all_to_all(output, input, received, sent); });
}

Work Comm::broadcast(const at::Tensor& tensor, const Axes& axes, int root) {
  check(tensor);
  OpenGroup& group = open(axes, tensor.device());
  ORTHANT_CHECK(root >= 0 && root < group.size(), root, group.size());
  if (group.size() == 1) return {};
  return state_->start({&group, "broadcast", bytes_of(tensor)},
                       bytes_of(CollectiveKind::broadcast, tensor, group, root),
                       [&](Group& g) { return g.broadcast(tensor, root); });
}

Work Comm::reduce(const at::Tensor& tensor, const Axes& axes, int root) {
  check_sum(tensor);
  OpenGroup& group = open(axes, tensor.device());
  ORTHANT_CHECK(root >= 0 && root < group.size(), root, group.size());
  if (group.size() == 1) return {};
  return state_->start({&group, "reduce", bytes_of(tensor)}, bytes_of(CollectiveKind::reduce, tensor, group, root),
                       [&](Group& g) { return g.reduce(tensor, root); });
}

Work Comm::reduce_in_chunks(const at::Tensor& tensor, const Axes& axes, int root) {
  return reduce_in_chunks(tensor, axes, root, {}, {});
}

// No message of this rank moves while `make` runs, so it must be short. It may run after the Work is destroyed, even
// while an exception unwinds this rank, so it must own its data. Over NCCL, `make` runs at once and enqueues its work
// on the current stream, after `after`.
Work Comm::reduce_in_chunks(const at::Tensor& tensor, const Axes& axes, int root, const Work& after,
                            std::function<void()> make) {
  check_sum(tensor);
  OpenGroup& group = open(axes, tensor.device());
  ORTHANT_CHECK(root >= 0 && root < group.size(), root, group.size());
  if (group.size() == 1) {
    ORTHANT_CHECK(after.done());
    if (make) make();
    return {};
  }
  const CollectiveKind kind = root_sum(group.over_nccl);
  return state_->start(
      {&group, name_of(kind).data(), bytes_of(tensor)}, bytes_of(kind, tensor, group, root),
      [&](Group& g) { return g.reduce_in_chunks(tensor, root, {after.pending_.get(), std::move(make)}); });
}

Work Comm::shift(const at::Tensor& output, const at::Tensor& input, const Axes& axes, int by) {
  check(output, input);
  OpenGroup& group = open(axes, output.device());
  const int n = group.size(), to = ((group.position + by) % n + n) % n, from = ((group.position - by) % n + n) % n;
  if (to == group.position) return output.detach().copy_(input.detach().view_as(output)), Work();
  return messages("shift", std::array<Transfer, 2>{{{input, to, false, kShiftTag}, {output, from, true, kShiftTag}}},
                  group);
}

Work Comm::send(const at::Tensor& tensor, const Axes& axes, int to, int tag) {
  check(tensor);
  check_tag(tag);
  return message("send", {tensor, to, false, tag}, open(axes, tensor.device()));
}

Work Comm::recv(const at::Tensor& tensor, const Axes& axes, int from, int tag) {
  check(tensor);
  check_tag(tag);
  return message("recv", {tensor, from, true, tag}, open(axes, tensor.device()));
}

Work Comm::exchange(std::span<const Transfer> transfers, const Axes& axes) {
  if (transfers.empty()) return {};
  for (const Transfer& transfer : transfers) {
    check(transfer.tensor);
    check_tag(transfer.tag);
  }
  return messages("exchange", transfers, open(axes, transfers[0].tensor.device()));
}

GroupCall Comm::call_of(const char* kind, std::span<const Transfer> transfers, const OpenGroup& group) {
  GroupCall operation{&group, kind};
  for (const Transfer& transfer : transfers) {
    const int peer = transfer.peer;
    ORTHANT_CHECK(peer >= 0 && peer < group.size() && peer != group.position, peer, group.size());
    operation.tensor_bytes += bytes_of(transfer.tensor);
    (transfer.receive ? operation.bytes.received : operation.bytes.sent) += bytes_of(transfer.tensor);
    operation.messages.push_back({.position = peer, .receive = transfer.receive});
  }
  return operation;
}

Work Comm::messages(const char* kind, std::span<const Transfer> transfers, OpenGroup& group) {
  const GroupCall operation = call_of(kind, transfers, group);
  return state_->start(operation, operation.bytes, [&](Group& g) { return g.exchange(transfers); });
}

Work Comm::message(const char* kind, const Transfer& transfer, OpenGroup& group) {
  const GroupCall operation = call_of(kind, {&transfer, 1}, group);
  if (!group.over_nccl) return state_->start(operation, operation.bytes, [&](Group& g) { return g.message(transfer); });
  const int own = group.position, peer = transfer.peer;
  const auto direction = group.directions.find(transfer.receive ? std::pair(peer, own) : std::pair(own, peer));
  ORTHANT_CHECK(direction != group.directions.end(), kind, peer, "prepare_messages() must name this direction");
  const Transfer between_two{transfer.tensor, transfer.receive ? 0 : 1, transfer.receive};  // the sender is position 0
  return state_->start(operation, operation.bytes, [&](Group&) { return direction->second->message(between_two); });
}

Work Comm::barrier(const Axes& axes) {
  OpenGroup& group = open(axes);
  if (group.size() == 1) return {};
  return state_->start({&group, "barrier", 0}, {}, [](Group& g) { return g.barrier(); });
}

std::shared_ptr<void> Comm::keep_advancing() { return state_->engine ? state_->engine->keep_advancing() : nullptr; }

RollCall Comm::open_roll_call(const std::string& awaited) { return state_->open_roll_call(awaited); }

std::vector<StartedOperation> Comm::last_operations() const { return state_->last_operations(); }

TrafficTable Comm::traffic() const { return state_->traffic; }

Traffic Comm::total_traffic() const {
  Traffic total;
  for (const auto& [key, traffic] : state_->traffic) {
    total.calls += traffic.calls;
    total.bytes += traffic.bytes;
  }
  return total;
}

void Comm::progress() {
  if (state_->engine) state_->engine->progress();
}

double Comm::exposed_wait_s() const { return state_->exposed_wait_s; }
void Comm::set_activity(std::string activity) { state_->set_activity(std::move(activity)); }

bool Comm::abort(const std::string& message) { return !state_->watch || state_->watch->abort(message); }

}  // namespace orthant
