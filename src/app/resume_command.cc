#include "app/resume_command.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"

namespace orthant {
namespace {

using Words = std::vector<std::string>;

constexpr const char* kResume = "--resume";

std::string base_name(const std::string& path) { return path.substr(path.rfind('/') + 1); }

bool is_one_of(const std::string& word, std::initializer_list<const char*> words) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

bool is_launcher(const std::string& program, const std::string& launcher) {
  const std::string name = base_name(program);
  if (launcher == "torchrun") return name == "torchrun";
  return is_one_of(name.substr(0, name.find('.')), {"mpirun", "mpiexec", "orterun", "prterun"});  // "mpiexec.hydra"
}

// The launcher's command line as its user typed it; empty if the process is not that launcher. Where the launcher is a
// script, the first word of a process is its interpreter.
Words line_of(const Words& words, const std::string& launcher) {
  for (size_t i = 0; i < std::min<size_t>(2, words.size()); ++i) {
    if (is_launcher(words[i], launcher)) return {words.begin() + static_cast<std::ptrdiff_t>(i), words.end()};
  }
  for (size_t i = 1; i < words.size() && launcher == "torchrun"; ++i) {
    if (words[i - 1] == "-m" && is_one_of(words[i], {"torch.distributed.run", "torch.distributed.launch"}))
      return words;
  }
  return {};
}

bool ends_with(const Words& words, const Words& end) {
  return words.size() >= end.size() && std::equal(end.rbegin(), end.rend(), words.rbegin());
}

// The command line of the nearest launcher among the ancestors, if it ends with this program's arguments: then an
// argument appended to it reaches this program. Empty if a script is between them, or if the launcher starts several
// programs at once.
Words launcher_line(const Words& command, const std::string& launcher, const std::vector<Words>& ancestors) {
  for (const Words& ancestor : ancestors) {
    const Words line = line_of(ancestor, launcher);
    if (line.empty()) continue;
    const bool several = std::find(line.begin(), line.end(), ":") != line.end();
    return !several && ends_with(line, {command.begin() + 1, command.end()}) ? line : Words{};
  }
  return {};
}

std::string with_note(const Words& words, const std::string& note) {
  return shell_quoted(words) + (note.empty() ? "" : fmt::format("\n  ({})", note));
}

// torchrun must be started once on every host.
std::string note_for_hosts(const Words& line, const Launch& launch) {
  if (launch.launcher != "torchrun" || launch.local_size == launch.world_size) return "";
  const bool ranked = std::any_of(line.begin(), line.end(), [](const std::string& word) {
    return word.starts_with("--node-rank") || word.starts_with("--node_rank");
  });
  return ranked ? "run it on every host, each with its own --node-rank" : "run it on every host";
}

std::string under_srun(const Words& command, const Launch& launch, const Environment& environment) {
  std::optional<std::string> nodes;
  for (const char* name : {"SLURM_STEP_NUM_NODES", "SLURM_JOB_NUM_NODES", "SLURM_NNODES"}) {
    if (!nodes) nodes = environment(name);
  }
  Words words{"srun"};
  if (nodes) words.push_back("--nodes=" + *nodes);
  words.push_back(fmt::format("--ntasks={}", launch.world_size));
  words.insert(words.end(), command.begin(), command.end());
  return with_note(words, "add the other options of srun that the run was started with");
}

}  // namespace

std::string resume_command(const Words& command, const std::optional<Launch>& launch,
                           const std::vector<Words>& ancestors, const Environment& environment) {
  const bool resumes = std::find(command.begin(), command.end(), kResume) != command.end();
  const auto resumed = [&](Words words) {
    if (!resumes) words.push_back(kResume);
    return words;
  };
  if (!launch || launch->launcher == "orthant" || command.empty()) return shell_quoted(resumed(command));
  if (launch->launcher == "slurm") return under_srun(resumed(command), *launch, environment);
  if (const Words line = launcher_line(command, launch->launcher, ancestors); !line.empty())
    return with_note(resumed(line), note_for_hosts(line, *launch));
  const bool by_hand = launch->launcher == "environment";
  const std::string how =
      by_hand ? "run it as each of the {} ranks, with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set as before"
              : "run it with the launcher that started the {} ranks";
  return with_note(resumed(command), fmt::format(fmt::runtime(how), launch->world_size));
}

}  // namespace orthant
