// Reads the memory of the machine and of its control groups, and compares a plan with it.
#include "runtime/machine_memory.h"

#include "base/text.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <sstream>

namespace orthant {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

// Reads lines of the form "name value" or "name: value kB". Values keep the unit of the file.
std::map<std::string, int64_t> table_in(const fs::path& path) {
  std::map<std::string, int64_t> table;
  std::ifstream file(path);
  for (std::string line, name; std::getline(file, line);) {
    int64_t value = 0;
    std::istringstream words(line);
    if (words >> name >> value) table[name.substr(0, name.find(':'))] = value;
  }
  return table;
}

// The number in a file, or `none` if there is no number ("max") or no such file.
int64_t number_in(const fs::path& path, int64_t none) {
  int64_t value = 0;
  std::ifstream file(path);
  return file >> value ? value : none;
}

struct GroupFiles {
  const char *limit, *used, *reclaimable;
};
constexpr GroupFiles kVersion2 = {"memory.max", "memory.current", "inactive_file"},
                     kVersion1 = {"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"};

// Lowers total and available memory to the tightest limit of a group and its ancestors.
void limit_by(MachineMemory& memory, const fs::path& top, const fs::path& group, const GroupFiles& names) {
  for (fs::path at = group;; at = at.parent_path()) {
    const fs::path folder = top / at.relative_path();
    const int64_t limit = number_in(folder / names.limit, kNoLimit);
    if (limit < memory.total_bytes) {
      memory.total_bytes = limit;
      memory.owner = "this control group";
    }
    if (limit < kNoLimit) {
      auto counted = table_in(folder / "memory.stat");
      const int64_t used = number_in(folder / names.used, 0) - counted[names.reclaimable];
      memory.available_bytes = std::min(memory.available_bytes, std::max<int64_t>(0, limit - used));
    }
    if (at == at.parent_path()) return;
  }
}

}  // namespace

MachineMemory machine_memory(const std::string& root) {
  auto counted = table_in(root + "/proc/meminfo");
  MachineMemory memory;
  memory.total_bytes = counted["MemTotal"] * 1024;
  memory.available_bytes = counted["MemAvailable"] * 1024;
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; memory.total_bytes > 0 && std::getline(groups, line);) {
    const auto fields = split(line, ':');  // for example "0::/a/b" or "5:memory:/a/b"
    if (fields.size() < 3 || !fields[2].starts_with('/')) continue;
    if (fields[1].empty()) limit_by(memory, root + "/sys/fs/cgroup", fields[2], kVersion2);
    if (fields[1] == "memory") limit_by(memory, root + "/sys/fs/cgroup/memory", fields[2], kVersion1);
  }
  return memory;
}

MemoryNeed memory_need(const Plan& plan, int local_ranks, const MachineMemory& machine) {
  const auto each = static_cast<double>(plan.largest_memory_bytes()), all = each * local_ranks;
  if (machine.total_bytes <= 0 || all <= static_cast<double>(machine.available_bytes)) return {};
  const std::string need = local_ranks == 1 ? fmt::format("the plan needs {}", format_bytes(all))
                                            : fmt::format("the plan needs {} for each of {} ranks, {} in all",
                                                          format_bytes(each), local_ranks, format_bytes(all));
  const bool beyond = all > static_cast<double>(machine.total_bytes);
  const std::string total = format_bytes(static_cast<double>(machine.total_bytes));
  if (beyond) return {fmt::format("{}, but {} has {}", need, machine.owner, total), true};
  return {fmt::format("{}, but of the {} of {} only {} are available", need, total, machine.owner,
                      format_bytes(static_cast<double>(machine.available_bytes))),
          false};
}

}  // namespace orthant
