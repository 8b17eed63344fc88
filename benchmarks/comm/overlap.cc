// Measures whether communication proceeds while a rank computes. A step starts an operation, computes for about as long
// as the operation takes alone, and waits. Prints one line of JSON per size; benchmarks/comm/run.py makes a table.
//
//   overlap --ranks 2 --transport ucx|gloo --op ring|all_reduce --bytes 1048576,16777216 --seconds 1
//
// The computation is products of small float32 matrices, on one thread. The three steps (computation alone, operation
// alone, both) take turns. Each step is timed from a barrier to its end on the slowest rank; a figure is the median.
#include <ATen/ops/full.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>

#include <array>

#include "benchmarks/ranks.h"

namespace orthant {
namespace {

const Axes kRing = {"ring"};

/// Returns the median time of 11 steps, after 5 warm-up steps.
double typical_s(Comm& comm, const std::function<void()>& step) {
  constexpr int kWarm = 5, kCounted = 11;
  for (int i = 0; i < kWarm; ++i) step();
  std::vector<double> times_s;
  for (int i = 0; i < kCounted; ++i) times_s.push_back(time_step(comm, step));
  return quantile(times_s, 0.5);
}

class Compute {
 public:
  void operator()(int64_t products) {
    for (int64_t i = 0; i < products; ++i) at::mm_out(out_, in_, in_);
  }
  /// Returns the number of products that take the given time on the slowest rank, while all ranks compute.
  int64_t products_in(Comm& comm, double seconds) {
    constexpr int64_t kTried = 50;
    const double each_s = typical_s(comm, [&] { (*this)(kTried); }) / kTried;
    return std::max<int64_t>(1, std::llround(seconds / each_s));
  }

 private:
  // A product has 2 * 96^3 FLOPs, with 36 KiB per matrix, and takes a few microseconds. Any longer time is therefore
  // close to a whole number of products.
  const at::Tensor in_ = at::full({96, 96}, 0.01, at::kFloat);
  at::Tensor out_ = at::zeros({96, 96}, at::kFloat);
};

void measure(const Settings& settings, Comm& comm) {
  for (const int64_t bytes : settings.integers("bytes")) {
    const at::Tensor out = at::zeros({bytes / 4}, at::kFloat), in = at::full({bytes / 4}, 1.0, at::kFloat);
    const auto start = [&] {
      return settings.text("op") == "ring" ? comm.shift(out, in, kRing) : comm.all_reduce(out, kRing);
    };
    Compute compute;
    const auto transfer = [&] { start().wait(); };
    const double transfer_s = typical_s(comm, transfer);
    const int64_t products = agree(comm, compute.products_in(comm, transfer_s));
    const auto both = [&] {
      Work work = start();
      compute(products);
      work.wait();
    };
    const auto fitting = std::llround(settings.number("seconds") / transfer_s / 3);
    const int64_t steps = agree(comm, std::clamp<int64_t>(fitting, 5, 1000));
    std::array<std::vector<double>, 3> times;
    for (int64_t i = -1; i < steps; ++i) {
      const std::array<double, 3> step = {time_step(comm, [&] { compute(products); }), time_step(comm, transfer),
                                          time_step(comm, both)};
      for (size_t k = 0; i >= 0 && k < step.size(); ++k) times[k].push_back(1e6 * step[k]);  // the first warms up
    }
    if (comm.rank() != 0) continue;
    const double compute_us = quantile(times[0], 0.5), transfer_us = quantile(times[1], 0.5);
    const double both_us = quantile(times[2], 0.5);
    fmt::print(R"({{"program": "{}", "op": "{}", "ranks": {}, "bytes": {}, "steps": {}, "compute_us": {:.1f}, )"
               R"("transfer_us": {:.1f}, "both_us": {:.1f}, "both_over_longer": {:.3f}}})"
               "\n",
               comm.transport(), settings.text("op"), comm.group_size(kRing), bytes, steps, compute_us, transfer_us,
               both_us, both_us / std::max(compute_us, transfer_us));
  }
}

int run(int argc, char** argv) {
  const Settings settings(
      argc, argv, {{"ranks", "2"}, {"transport", "auto"}, {"op", "ring"}, {"bytes", "16777216"}, {"seconds", "1"}});
  const std::string& op = settings.text("op");
  if (op != "ring" && op != "all_reduce") throw ConfigError("--op " + op + ": ring or all_reduce");
  return measure_on_ranks(argc, argv, static_cast<int>(settings.number("ranks")), settings.text("transport"),
                          [&](Comm& comm) { measure(settings, comm); });
}

}  // namespace
}  // namespace orthant

int main(int argc, char** argv) { return orthant::run_benchmark(argc, argv, orthant::run); }
