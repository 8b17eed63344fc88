// Measures the time and the CPU time of one communication operation between processes of this machine. Prints one line
// of JSON per size; benchmarks/comm/run.py compares them with other libraries.
//
//   comm_benchmark --ranks 2 --transport ucx|gloo --op ring --bytes 4096,1048576 --seconds 1
//   comm_benchmark --op memcpy --bytes 4096 --seconds 1       one copy by one process
//
// ring: each rank sends the bytes to the next rank and receives the same number from the previous one. all_reduce,
// all_reduce_small, reduce and reduce_in_chunks: a sum of float32, in place, the last two at rank 0. Times are those of
// rank 0: median and deciles of the means of 20 batches. CPU time is user and system time of all ranks, divided by the
// bytes that all of them send.
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <sys/resource.h>

#include <cstring>
#include <set>

#include "benchmarks/ranks.h"

namespace orthant {
namespace {

constexpr int64_t kFewest = 5, kBatches = 20;

double cpu_s() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](timeval t) { return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec); };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

struct Measured {
  int64_t operations = 0;
  std::vector<double> each_s;  // mean time of an operation, by batch
  double cpu_s = 0;            // CPU time of this rank, over all batches
};

/// Repeats the operation for about the given number of seconds, in batches. Single operations are not timed: ranks that
/// share a core take turns, so within one turn of a core many operations find their messages already received. Trials
/// of growing length first estimate the time of an operation; they are not measured. `agree` returns rank 0's number on
/// every rank.
Measured repeat(double seconds, const std::function<void()>& operation, const std::function<int64_t(int64_t)>& agree) {
  const auto time_s = [&](int64_t count) {
    const double start = now_s();
    for (int64_t i = 0; i < count; ++i) operation();
    return now_s() - start;
  };
  int64_t count = 0;
  for (int64_t trial = 1; count == 0;) {
    const double trial_s = time_s(trial);
    const double fitting = static_cast<double>(trial) * seconds / std::max(trial_s, 1e-9);
    const int64_t said = agree(trial_s < seconds / 10 ? 2 * trial : -std::max<int64_t>(kFewest, std::llround(fitting)));
    (said > 0 ? trial : count) = std::abs(said);
  }
  const int64_t batches = std::min(count, kBatches);
  const int64_t size = count / batches;
  Measured measured{.operations = batches * size};
  const double cpu = cpu_s();
  for (int64_t i = 0; i < batches; ++i) measured.each_s.push_back(time_s(size) / static_cast<double>(size));
  measured.cpu_s = cpu_s() - cpu;
  return measured;
}

void print_line(const std::string& program, const std::string& op, int ranks, int64_t bytes, double sent_bytes,
                double cpu_s, Measured measured) {
  auto& each_s = measured.each_s;
  fmt::print(R"({{"program": "{}", "op": "{}", "ranks": {}, "bytes": {}, "operations": {}, "median_us": {:.3f}, )"
             R"("p10_us": {:.3f}, "p90_us": {:.3f}, "cpu_s_per_gb": {:.4f}}})"
             "\n",
             program, op, ranks, bytes, measured.operations, 1e6 * quantile(each_s, 0.5), 1e6 * quantile(each_s, 0.1),
             1e6 * quantile(each_s, 0.9), cpu_s / (1e-9 * sent_bytes * static_cast<double>(measured.operations)));
}

void measure_copies(const Settings& settings) {
  for (const int64_t bytes : settings.integers("bytes")) {
    std::vector<char> from(static_cast<size_t>(bytes), 1), to(static_cast<size_t>(bytes), 2);
    const auto copy = [&] {
      std::memcpy(to.data(), from.data(), to.size());
      asm volatile("" : : "r"(to.data()) : "memory");  // keeps the compiler from removing the unused copy
    };
    const Measured measured = repeat(settings.number("seconds"), copy, [](int64_t n) { return n; });
    print_line("memcpy", "memcpy", 1, bytes, static_cast<double>(bytes), measured.cpu_s, measured);
  }
}

void measure_messages(const Settings& settings, Comm& comm) {
  const Axes ring = {"ring"};
  const std::string& op = settings.text("op");
  const int ranks = comm.group_size(ring);
  for (const int64_t bytes : settings.integers("bytes")) {
    const at::Tensor out = at::full({bytes / 4}, 1.0, at::kFloat), in = at::full({bytes / 4}, comm.rank(), at::kFloat);
    const auto start = [&]() -> Work {
      if (op == "ring") return comm.shift(out, in, ring);
      if (op == "all_reduce_small") return comm.all_reduce_small(out, ring);
      if (op == "reduce") return comm.reduce(out, ring);
      if (op == "reduce_in_chunks") return comm.reduce_in_chunks(out, ring);
      return comm.all_reduce(out, ring);
    };
    const bool to_root = op.starts_with("reduce");
    const auto operation = [&] {
      start().wait();
      if (to_root) comm.barrier(ring).wait();  // so that other ranks do not run ahead of the root
    };
    const int64_t before = comm.total_traffic().bytes.sent;
    operation();
    double sent = 0;  // bytes of one operation, over all ranks
    for (const double bytes_of_rank : gather(comm, static_cast<double>(comm.total_traffic().bytes.sent - before)))
      sent += bytes_of_rank;
    const int expected = op == "ring" ? (comm.rank() + ranks - 1) % ranks : to_root && comm.rank() > 0 ? 1 : ranks;
    ORTHANT_CHECK((out == expected).all().item<bool>(), op, ranks, bytes);
    out.zero_();  // so that repeated sums remain finite
    const Measured measured =
        repeat(settings.number("seconds"), operation, [&](int64_t count) { return agree(comm, count); });
    double cpu = 0;
    for (const double seconds : gather(comm, measured.cpu_s)) cpu += seconds;
    if (comm.rank() == 0) print_line(comm.transport(), op, ranks, bytes, sent, cpu, measured);
  }
}

int run(int argc, char** argv) {
  const Settings settings(
      argc, argv, {{"ranks", "2"}, {"transport", "auto"}, {"op", "ring"}, {"bytes", "4096"}, {"seconds", "1"}});
  const std::string& op = settings.text("op");
  if (op == "memcpy") {
    measure_copies(settings);
    return 0;
  }
  const std::set<std::string> ops = {"ring", "all_reduce", "all_reduce_small", "reduce", "reduce_in_chunks"};
  if (!ops.contains(op))
    throw ConfigError("--op " + op + ": ring, all_reduce, all_reduce_small, reduce, reduce_in_chunks or memcpy");
  return measure_on_ranks(argc, argv, static_cast<int>(settings.number("ranks")), settings.text("transport"),
                          [&](Comm& comm) { measure_messages(settings, comm); });
}

}  // namespace
}  // namespace orthant

int main(int argc, char** argv) { return orthant::run_benchmark(argc, argv, orthant::run); }
