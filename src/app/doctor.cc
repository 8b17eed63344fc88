// orthant doctor: reports how suitable this machine is for training, with advice for each problem.
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <dlfcn.h>
#include <sys/statvfs.h>
#include <torch/version.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "app/commands.h"
#include "app/machine_speed.h"
#include "base/cores.h"
#include "base/errors.h"
#include "base/text.h"
#include "comm/shared_memory.h"
#include "comm/transport.h"
#include "launch/address.h"
#include "launch/launch.h"
#include "launch/spawn.h"
#include "runtime/machine_memory.h"

namespace orthant {
namespace {

struct Finding {
  std::string name;
  std::string found;
  std::string advice;  // empty: no problem
};

constexpr double kMib = 1024.0 * 1024, kGib = 1024 * kMib;

std::string read_all(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// The text after the colon in the first line that begins with `name`, for /proc/cpuinfo.
std::string proc_field(const std::string& text, const std::string& name) {
  for (const std::string& line : split(text, '\n')) {
    if (!line.starts_with(name)) continue;
    const size_t colon = line.find(':');
    if (colon != std::string::npos) return std::string(trim(std::string_view(line).substr(colon + 1)));
  }
  return "";
}

Finding check_cpu() {
  const int cores = available_cores();
  Finding finding{"cpu", fmt::format("{}, {} cores usable", proc_field(read_all("/proc/cpuinfo"), "model name"), cores),
                  ""};
  // A container's CPU limit: "quota period" in microseconds, or "max period".
  std::istringstream limit(read_all("/sys/fs/cgroup/cpu.max"));
  double quota = 0, period = 0;
  if (limit >> quota >> period && period > 0 && quota / period < cores) {
    finding.found += fmt::format(", limited to the CPU time of {:.1f}", quota / period);
    finding.advice = "more ranks x threads than this limit make steps slower; set run.ranks and run.threads_per_rank";
  }
  return finding;
}

Finding check_instructions() {
  const std::string flags = " " + proc_field(read_all("/proc/cpuinfo"), "flags") + " ";
  std::vector<std::string> present;
  for (const std::string name : {"avx2", "avx512f", "avx512_bf16", "amx_bf16"}) {
    if (flags.find(" " + name + " ") != std::string::npos) present.push_back(name);
  }
  const bool fast_bf16 = flags.find("_bf16 ") != std::string::npos;
  return {"instructions", present.empty() ? "no AVX2" : join(present, ", "),
          fast_bf16 ? "" : "this CPU has no bfloat16 instructions, so training.dtype = \"float32\" is faster"};
}

Finding check_memory() {
  const MachineMemory memory = machine_memory();
  if (memory.total_bytes <= 0) return {"memory", "not known, because /proc/meminfo cannot be read", ""};
  const auto available = static_cast<double>(memory.available_bytes);
  Finding finding{"memory",
                  fmt::format("{} of the {} of {} available", format_bytes(available),
                              format_bytes(static_cast<double>(memory.total_bytes)), memory.owner),
                  ""};
  if (available < 2 * kGib)
    finding.advice = "less than 2 GiB is available; orthant plan run.toml shows what a run needs";
  return finding;
}

Finding check_libtorch() {
  Finding finding{"libtorch", TORCH_VERSION, ""};
  finding.found += at::hasMKL() ? ", MKL" : ", no MKL";
  finding.found += at::hasMKLDNN() ? ", oneDNN" : ", no oneDNN";
  finding.found += at::hasCUDA() ? ", CUDA" : ", CPU only";
  if (!at::hasMKL() && !at::hasMKLDNN()) finding.advice = "matrix products may be slow; use the wheel of pytorch.org";
  return finding;
}

Finding check_threads() {
  const char* variable = std::getenv("OMP_NUM_THREADS");
  Finding finding{"threads", fmt::format("{} per process", at::get_num_threads()), ""};
  if (variable != nullptr) {
    finding.found += fmt::format(", OMP_NUM_THREADS={}", variable);
    if (std::atoi(variable) > available_cores()) finding.advice = "more threads than cores; unset OMP_NUM_THREADS";
  }
  return finding;
}

Finding check_allocator() {
  if (dlsym(RTLD_DEFAULT, "mi_malloc") != nullptr) return {"allocator", "mimalloc", ""};
  if (dlsym(RTLD_DEFAULT, "tc_malloc") != nullptr) return {"allocator", "tcmalloc", ""};
  return {"allocator", "system",
          "it returns large blocks to the kernel after each use; build with mimalloc (libmimalloc-dev)"};
}

Finding check_launcher() {
  try {
    const auto launch = detect_launch(process_environment, "");
    if (!launch) return {"launcher", "none; orthant train starts its own ranks", ""};
    return {"launcher", fmt::format("{}, rank {} of {}", launch->launcher, launch->rank, launch->world_size), ""};
  } catch (const ConfigError& error) {
    return {"launcher", "incomplete", error.what()};
  }
}

Finding check_loopback() {
  const int descriptor = listen_on_loopback(0);
  const bool works = descriptor >= 0;
  if (works) ::close(descriptor);
  const std::string address = loopback_address();
  return {"loopback", works ? "ranks of this machine can connect over " + address : "cannot listen on " + address,
          works ? "" : "local ranks connect over it; allow sockets in this container or sandbox"};
}

Finding check_space(const std::string& name, const std::string& path, double least_bytes, const std::string& advice) {
  struct statvfs space {};
  if (::statvfs(path.c_str(), &space) != 0) return {name, "missing", advice};
  const double unit = static_cast<double>(space.f_frsize);
  const double free = static_cast<double>(space.f_bavail) * unit;
  return {name,
          fmt::format("{} free of {}", format_bytes(free), format_bytes(static_cast<double>(space.f_blocks) * unit)),
          free < least_bytes ? advice : ""};
}

Finding check_shared_memory() {
  const int64_t free = free_shared_memory();
  return {"/dev/shm", fmt::format("{} free", format_bytes(static_cast<double>(free))),
          shared_memory_problem(free, std::max(2, available_cores()))};
}

// Checks the transports of UCX: shared memory within a machine, a network between machines.
Finding check_ucx() {
  const UcxReport ucx = examine_ucx();
  if (!ucx.problem.empty()) return {"ucx", "not available, so ranks use Gloo", ucx.problem};
  const auto has = [&](const char* name) {
    return std::find(ucx.transports.begin(), ucx.transports.end(), name) != ucx.transports.end();
  };
  std::vector<std::string> lacks;
  if (!has("posix") && !has("sysv"))
    lacks.push_back("no shared memory: ranks of one machine communicate over the network");
  if (!has("cma"))
    lacks.push_back("no cma: large messages within a machine are copied twice; in Docker: --cap-add=SYS_PTRACE");
  if (!has("tcp")) lacks.push_back("no tcp: several machines need InfiniBand");
  return {"ucx", fmt::format("{}: {}", ucx.version, join(ucx.transports, ", ")), join(lacks, "; ")};
}

Finding check_program(const std::string& name, const std::vector<std::string>& programs, const std::string& advice) {
  const char* path = std::getenv("PATH");
  std::vector<std::string> missing;
  for (const std::string& program : programs) {
    bool found = false;
    for (const std::string& folder : split(path == nullptr ? "" : path, ':')) {
      found = found || ::access((folder + "/" + program).c_str(), X_OK) == 0;
    }
    if (!found) missing.push_back(program);
  }
  return missing.empty() ? Finding{name, join(programs, ", "), ""} : Finding{name, "no " + join_or(missing), advice};
}

Finding check_products(const MachineSpeed& speed) {
  return {"products",
          fmt::format("float32: {:.1f} GFLOP/s with 1 thread, {:.1f} with {}", speed.one_thread_gflops,
                      speed.all_threads_gflops, speed.threads),
          ""};
}

Finding check_neighbors(const MachineSpeed& speed) {
  return {"neighbors",
          fmt::format("the threads of these products got {:.0f}% of the CPU time that they could have used",
                      100 * speed.cpu_share),
          neighbors_advice(speed)};
}

std::vector<Finding> examine(const MachineSpeed& speed) {
  return {
      {"orthant", version(), ""},
      check_cpu(),
      check_instructions(),
      check_memory(),
      check_libtorch(),
      check_threads(),
      check_products(speed),
      check_neighbors(speed),
      check_allocator(),
      check_launcher(),
      check_loopback(),
      check_shared_memory(),
      check_ucx(),
      check_program("sentencepiece", {"spm_train", "spm_encode"},
                    "only data.tokenizer = \"byte\" works without it; for others: apt-get install sentencepiece"),
      check_space(
          "disk", ".", 2 * kGib,
          "a checkpoint takes at least 12 bytes per parameter; set job.dump_folder to a folder on a larger disk"),
  };
}

nlohmann::ordered_json json_of(const MachineSpeed& speed) {
  return {{"threads", speed.threads},
          {"float32_gflops_one_thread", speed.one_thread_gflops},
          {"float32_gflops_all_threads", speed.all_threads_gflops},
          {"cpu_share", speed.cpu_share},
          {"others_cores", speed.others_cores},
          {"stolen_cores", speed.stolen_cores}};
}

std::string as_json(const std::vector<Finding>& findings, const MachineSpeed& speed) {
  nlohmann::ordered_json checks = nlohmann::ordered_json::array();
  bool ok = true;
  for (const Finding& finding : findings) {
    ok = ok && finding.advice.empty();
    checks.push_back(
        {{"name", finding.name}, {"ok", finding.advice.empty()}, {"found", finding.found}, {"advice", finding.advice}});
  }
  const nlohmann::ordered_json answer = {{"ok", ok}, {"speed", json_of(speed)}, {"checks", checks}};
  return answer.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace

int doctor(const DoctorArguments& arguments) {
  const MachineSpeed speed = measure_machine_speed(arguments.measure_s);
  const std::vector<Finding> findings = examine(speed);
  if (arguments.json) {
    fmt::print("{}\n", as_json(findings, speed));
    return kDone;
  }
  int warnings = 0;
  for (const Finding& finding : findings) {
    const bool ok = finding.advice.empty();
    warnings += ok ? 0 : 1;
    fmt::print("{:<8} {:<14} {}\n", ok ? "ok" : "warning", finding.name, finding.found);
    if (!ok) fmt::print("{:<24}{}\n", "", "-> " + finding.advice);
  }
  fmt::print("{}\n", warnings == 0 ? "no problems found" : fmt::format("warnings: {}", warnings));
  return kDone;
}

}  // namespace orthant
