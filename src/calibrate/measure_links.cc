#include "calibrate/measure_links.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "base/clock.h"

namespace orthant {
namespace {

// Returns rank 0's number on all ranks.
double agree(Comm& comm, double number) {
  const at::Tensor own = at::full({1}, number, at::kDouble);
  comm.broadcast(own, all_axes(comm.mesh())).wait();
  return own.item<double>();
}

// Returns the time that an operation adds to a computation before it, as in a step: ranks arrive at slightly different
// times, a rank that waits may sleep or lose its core, and the computation has replaced the messages in the caches. The
// fastest of five batches counts, because other programs only make a batch slower.
double time_operation(Comm& comm, double seconds, const std::function<void()>& compute,
                      const std::function<void()>& operation) {
  constexpr int kBatches = 5;
  const Axes everyone = all_axes(comm.mesh());
  const auto time_batch = [&](int64_t count, bool communicates) {
    comm.barrier(everyone).wait();
    const auto begin = Clock::now();
    for (int64_t i = 0; i < count; ++i) {
      compute();
      if (communicates) operation();
    }
    comm.barrier(everyone).wait();
    return agree(comm, seconds_since(begin)) / static_cast<double>(count);
  };
  time_batch(1, true);  // the first operation may connect
  const double each = time_batch(2, true);
  const int64_t count = std::max<int64_t>(3, std::llround(seconds / (2 * kBatches * each)));
  double with = INFINITY, without = INFINITY;
  for (int i = 0; i < kBatches; ++i) {
    with = std::min(with, time_batch(count, true));
    without = std::min(without, time_batch(count, false));
  }
  constexpr double kLeast_s = 5e-6;  // a smaller difference is within the errors of the two measured times
  return std::max(kLeast_s, with - without);
}

// A computation of about half a millisecond. Its weights are other ones each time, as those of a step's layers are.
std::function<void()> make_computation() {
  constexpr int kLayers = 16;
  std::vector<at::Tensor> weights;
  for (int i = 0; i < kLayers; ++i) weights.push_back(at::full({512, 512}, 0.5, at::kFloat));
  return [weights, x = at::full({128, 512}, 0.5, at::kFloat), next = size_t{0}]() mutable {
    at::matmul(x, weights[next++ % weights.size()]);
  };
}

}  // namespace

std::vector<MeasuredCollective> measure_collectives(Comm& comm, double seconds) {
  const Axes axes = all_axes(comm.mesh());
  const int ranks = comm.mesh().size();
  const std::vector<int64_t> sizes = {4 << 10, 32 << 10, 256 << 10, 1 << 20, 4 << 20};  // bytes of the unsharded tensor
  using enum CollectiveKind;
  const std::vector<CollectiveKind> kinds = {all_reduce, all_gather, reduce_scatter, all_to_all, shift};
  const double each = seconds / static_cast<double>(sizes.size() * kinds.size());
  const std::function<void()> compute = make_computation();
  std::vector<MeasuredCollective> found;
  for (const CollectiveKind kind : kinds) {
    if (kind == shift && ranks != 2) continue;
    for (const int64_t bytes : sizes) {
      const int64_t elements = bytes / 4;
      const at::Tensor full = at::zeros({elements}, at::kFloat), other = at::zeros({elements}, at::kFloat),
                       part = at::zeros({elements / ranks}, at::kFloat);
      const auto operation = [&] {
        switch (kind) {
          case all_reduce:
            return comm.all_reduce(full, axes).wait();
          case all_gather:
            return comm.all_gather(full, part, axes).wait();
          case reduce_scatter:
            return comm.reduce_scatter(part, full, axes).wait();
          case all_to_all:
            return comm.all_to_all(other, full, axes).wait();
          default:
            break;
        }
        // A message there and one back.
        const int peer = 1 - comm.rank();
        if (comm.rank() == 0) comm.send(full, axes, peer).wait();
        comm.recv(other, axes, peer).wait();
        if (comm.rank() == 1) comm.send(full, axes, peer).wait();
      };
      const int64_t before = comm.total_traffic().bytes.sent;
      operation();
      const auto sent = static_cast<double>(comm.total_traffic().bytes.sent - before);
      const double messages = kind == shift ? 2 : 1;
      found.push_back({kind, ranks, sent, time_operation(comm, each, compute, operation) / messages});
    }
  }
  return found;
}

}  // namespace orthant
