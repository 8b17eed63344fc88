#include <chrono>
#include <atomic>
#include <dirent.h>
#include "tests/comm/line.h"
namespace orthant::zz {
static double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }
static int fds() { int n = 0; DIR* d = opendir("/proc/self/fd"); while (readdir(d)) ++n; closedir(d); return n; }
static long field(const char* name) { FILE* f = fopen("/proc/self/status", "r"); char line[256]; long v = 0; while (fgets(line, 256, f)) if (!strncmp(line, name, strlen(name))) v = atol(line + strlen(name)); fclose(f); return v; }
TEST(Scratch, Phases) {
  const int n = atoi(getenv("N"));
  const int reps = getenv("REPS") ? atoi(getenv("REPS")) : 10;
  const std::string transport = getenv("T") ? getenv("T") : "ucx";
  const bool direct = getenv("DIRECT") != nullptr;
  const double t0 = now();
  std::atomic<int> in = 0, out = 0;
  run_ranks(n, [&](Rendezvous rendezvous, int rank) {
    auto comm = std::make_unique<Comm>(line(n), rank, rendezvous, over(transport));
    if (++in == n) fmt::print("{} ranks, all open at {:.2f} s, fds {}, threads {}, rss {} kB\n", n, now() - t0, fds(), field("Threads:"), field("VmRSS:"));
    at::Tensor x = at::ones({24 + n}, at::kDouble);
    for (int i = 0; i < 3; ++i) {
      const double t = now();
      for (int r = 0; r < (i ? reps : 1); ++r) (direct ? comm->all_reduce(x, kOverData) : comm->all_reduce_small(x, kOverData)).wait();
      if (rank == 0) fmt::print("sum {}: {:.1f} us, fds {}, threads {}, connections {}, rss {} kB\n", i, (now() - t) / (i ? reps : 1) * 1e6, fds(), field("Threads:"), comm->num_connections(), field("VmRSS:"));
    }
    if (++out == n) fmt::print("all done at {:.2f}\n", now() - t0);
    comm.reset();
  });
  fmt::print("closed at {:.2f}\n", now() - t0);
}
}
