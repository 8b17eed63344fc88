// Measures the free space in /dev/shm and compares it with UCX's need per rank.
#include "comm/shared_memory.h"

#include <fmt/format.h>
#include <sys/statvfs.h>

#include "base/text.h"

namespace orthant {

int64_t free_shared_memory() {
  struct statvfs space {};
  if (statvfs("/dev/shm", &space) != 0) return 0;
  return static_cast<int64_t>(space.f_bavail) * static_cast<int64_t>(space.f_frsize);
}

std::string shared_memory_problem(int64_t free_bytes, int64_t ranks) {
  constexpr int64_t kPerRank = 4300 << 10;  // UCX 1.13 takes 4208 KiB
  if (free_bytes >= ranks * kPerRank) return "";
  return fmt::format(
      "/dev/shm must have {} free for the {} of this machine, but it has {}: enlarge it (docker run "
      "--shm-size=1g; mount -o remount,size=1g /dev/shm), or set run.transport = \"gloo\"",
      format_bytes(static_cast<double>(ranks * kPerRank)), counted(ranks, "rank"),
      format_bytes(static_cast<double>(free_bytes)));
}

}  // namespace orthant
