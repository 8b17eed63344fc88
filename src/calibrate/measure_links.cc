#include "calibrate/measure_links.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <optional>

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
// fastest of five batches counts, because other programs only make a batch slower; fewer if they take more than
// `seconds`. Returns nothing if one operation does, unless `always`.
std::optional<double> time_operation(Comm& comm, double seconds, bool always, const std::function<void()>& compute,
                                     const std::function<void()>& operation) {
  constexpr int kBatches = 5;
  const Axes everyone = all_axes(comm.mesh());
  const auto time_batch = [&](int64_t count, bool communicates) {
    comm.barrier(everyone).wait();
    const auto begin = Clock::now();
    for (int64_t i = 0; i < count; ++i) {
      if (compute) compute();
      if (communicates) operation();
    }
    comm.barrier(everyone).wait();
    return agree(comm, seconds_since(begin)) / static_cast<double>(count);
  };
  time_batch(1, true);  // the first operation may connect
  const double each = time_batch(1, true);
  if (each > seconds && !always) return std::nullopt;
  const int64_t count = std::max<int64_t>(compute ? 3 : 1, std::llround(seconds / (2 * kBatches * each)));
  double with = INFINITY, without = compute ? INFINITY : 0, used = 0;
  for (int i = 0; i < kBatches && used <= seconds; ++i) {
    const double now = time_batch(count, true);
    with = std::min(with, now);
    used += now * static_cast<double>(count);
    if (compute) without = std::min(without, time_batch(count, false));
  }
  constexpr double kLeast_s = 5e-6;  // a smaller difference is within the errors of the two measured times
  return std::max(kLeast_s, with - without);
}

constexpr std::array<int64_t, 5> kSizes = {4 << 10, 32 << 10, 256 << 10, 1 << 20, 4 << 20};  // bytes

// Measures one kind with every size of the unsharded tensor. `operation` takes the number of its float32 elements and
// returns the repeated part, which consists of `messages` operations one after another.
using Operation = std::function<std::function<void()>(int64_t elements)>;
void measure_sizes(std::vector<MeasuredCollective>& found, Comm& comm, CollectiveKind kind, int64_t ranks,
                   double seconds, double messages, const std::function<void()>& compute, const Operation& operation) {
  for (const int64_t bytes : kSizes) {
    const std::function<void()> operate = operation(std::max<int64_t>(1, bytes / 4 / ranks) * ranks);
    const int64_t before = comm.total_traffic().bytes.sent;
    operate();
    const auto sent = static_cast<double>(comm.total_traffic().bytes.sent - before);
    const auto time = time_operation(comm, seconds / kSizes.size(), bytes <= kSizes[1], compute, operate);
    if (time) found.push_back({kind, ranks, sent, *time / messages});
  }
}

at::Tensor zeros(int64_t elements) { return at::zeros({elements}, at::kFloat); }

}  // namespace

// It multiplies by other weights each time, as the layers of a step do.
std::function<void()> make_computation() {
  constexpr int kLayers = 16;
  std::vector<at::Tensor> weights;
  for (int i = 0; i < kLayers; ++i) weights.push_back(at::full({512, 512}, 0.5, at::kFloat));
  return [weights, x = at::full({128, 512}, 0.5, at::kFloat), next = size_t{0}]() mutable {
    at::matmul(x, weights[next++ % weights.size()]);
  };
}

std::vector<MeasuredCollective> measure_collectives(Comm& comm, const Axes& axes, double seconds,
                                                    const std::function<void()>& compute) {
  const int64_t ranks = comm.mesh().group_size(axes);
  std::vector<MeasuredCollective> found;
  const auto measure = [&](CollectiveKind kind, const Operation& operation) {
    constexpr double kKinds = 4;
    measure_sizes(found, comm, kind, ranks, seconds / kKinds, 1, compute, operation);
  };
  measure(CollectiveKind::all_reduce,
          [&](int64_t elements) { return [&, full = zeros(elements)] { comm.all_reduce(full, axes).wait(); }; });
  measure(CollectiveKind::all_gather, [&](int64_t elements) {
    return [&, full = zeros(elements), part = zeros(elements / ranks)] { comm.all_gather(full, part, axes).wait(); };
  });
  measure(CollectiveKind::reduce_scatter, [&](int64_t elements) {
    return
        [&, full = zeros(elements), part = zeros(elements / ranks)] { comm.reduce_scatter(part, full, axes).wait(); };
  });
  measure(CollectiveKind::all_to_all, [&](int64_t elements) {
    return [&, full = zeros(elements), other = zeros(elements)] { comm.all_to_all(other, full, axes).wait(); };
  });
  return found;
}

std::vector<MeasuredCollective> measure_messages(Comm& comm, const Axes& axes, double seconds,
                                                 const std::function<void()>& compute) {
  std::vector<MeasuredCollective> found;
  const int own = comm.position(axes), peer = 1 - own;
  measure_sizes(found, comm, CollectiveKind::shift, 2, seconds, 2, compute, [&](int64_t elements) {
    return [&, own, peer, full = zeros(elements), other = zeros(elements)] {  // a message there and one back
      if (own > 1) return;
      if (own == 0) comm.send(full, axes, peer).wait();
      comm.recv(other, axes, peer).wait();
      if (own == 1) comm.send(full, axes, peer).wait();
    };
  });
  return found;
}

}  // namespace orthant
