// Renames, links and removes checkpoints, each by one atomic operation, so that a kill at any moment leaves a complete
// checkpoint.
#include "checkpoint/retention.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>

#include "base/errors.h"
#include "checkpoint/files.h"

namespace orthant {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kStep = "step-";
constexpr std::string_view kTemporary = ".tmp-";  // incomplete or removed: deleted by the next save
constexpr std::string_view kOld = ".old-";        // complete, moved aside while its successor takes its name
constexpr const char* kLatest = "latest";

// The step in a name as step_name() makes it; nullopt for all other names.
std::optional<int64_t> parse_step_name(std::string_view name) {
  if (!name.starts_with(kStep)) return std::nullopt;
  int64_t step = -1;
  const std::string_view digits = name.substr(kStep.size());
  std::from_chars(digits.data(), digits.data() + digits.size(), step);
  if (step < 0 || step_name(step) != name) return std::nullopt;
  return step;
}

std::vector<std::string> member_names(const fs::path& directory) {
  std::vector<std::string> names;
  if (!fs::exists(directory)) return names;
  for (const auto& entry : fs::directory_iterator(directory)) names.push_back(entry.path().filename());
  return names;
}

// Removes a tree. It is renamed before its files are deleted, so that a kill in between leaves nothing that looks like
// a checkpoint.
void remove_tree(const fs::path& directory, const std::string& name) {
  fs::path victim = directory / name;
  if (!name.starts_with(kTemporary)) {
    const fs::path renamed = directory / fmt::format("{}removed-{}", kTemporary, name);
    fs::remove_all(renamed);
    fs::rename(victim, renamed);
    victim = renamed;
  }
  fs::remove_all(victim);
}

// Exchanges two names in one atomic operation. Returns false if the file system does not support it.
bool exchange_names(const fs::path& a, const fs::path& b) {
  if (::syscall(SYS_renameat2, AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE) == 0) return true;
  if (errno == EINVAL || errno == ENOSYS || errno == ENOTSUP) return false;
  throw DataError(fmt::format("{}: cannot replace {}: {}", a.string(), b.string(), std::strerror(errno)));
}

}  // namespace

std::string step_name(int64_t step) { return fmt::format("{}{:06}", kStep, step); }

std::vector<int64_t> list_steps(const std::string& checkpoints_dir) {
  std::vector<int64_t> steps;
  for (const std::string& name : member_names(checkpoints_dir)) {
    if (const auto step = parse_step_name(name)) steps.push_back(*step);
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

bool has_other_checkpoint(const std::string& checkpoint) {
  try {
    return list_steps(fs::path(checkpoint).parent_path()).size() > 1;
  } catch (const std::exception&) {
    return false;
  }
}

std::vector<std::string> list_leftovers(const std::string& checkpoints_dir) {
  std::vector<std::string> names = member_names(checkpoints_dir);
  std::erase_if(names,
                [](const std::string& name) { return !name.starts_with(kTemporary) && !name.starts_with(kOld); });
  std::sort(names.begin(), names.end());
  return names;
}

void remove_leftovers(const std::string& checkpoints_dir) {
  const fs::path directory(checkpoints_dir);
  for (const std::string& name : member_names(directory)) {
    const std::string_view rest = std::string_view(name).substr(std::min(name.size(), kOld.size()));
    if (name.starts_with(kOld) && parse_step_name(rest) && !fs::exists(directory / rest)) {
      fs::rename(directory / name, directory / rest);
    } else if (name.starts_with(kTemporary) || name.starts_with(kOld)) {
      remove_tree(directory, name);
    }
  }
}

std::string temporary_of(const std::string& checkpoints_dir, int64_t step) {
  return fs::path(checkpoints_dir) / fmt::format("{}{}", kTemporary, step_name(step));
}

std::string make_temporary(const std::string& checkpoints_dir, int64_t step) {
  const std::string temporary = temporary_of(checkpoints_dir, step);
  fs::remove_all(temporary);
  fs::create_directories(temporary);
  return temporary;
}

std::string move_into_place(const std::string& checkpoints_dir, int64_t step, bool exchange) {
  const fs::path directory(checkpoints_dir);
  const std::string name = step_name(step);
  const fs::path temporary = temporary_of(checkpoints_dir, step);
  const fs::path final_path = directory / name;
  const fs::path old = directory / fmt::format("{}{}", kOld, name);
  if (!fs::exists(final_path)) {
    fs::rename(temporary, final_path);
  } else if (!exchange || !exchange_names(temporary, final_path)) {
    fs::rename(final_path, old);
    fs::rename(temporary, final_path);
  }
  sync_directory(checkpoints_dir);
  if (fs::exists(old)) remove_tree(directory, old.filename());
  fs::remove_all(temporary);  // after an exchange, it holds the replaced checkpoint
  return final_path;
}

void point_latest(const std::string& checkpoints_dir, int64_t step) {
  const fs::path directory(checkpoints_dir);
  const fs::path fresh = directory / fmt::format("{}{}", kTemporary, kLatest);
  fs::remove(fresh);
  fs::create_symlink(step_name(step), fresh);
  fs::rename(fresh, directory / kLatest);
  sync_directory(checkpoints_dir);
}

std::optional<std::string> follow_latest(const std::string& checkpoints_dir) {
  std::error_code error;
  const fs::path target = fs::read_symlink(fs::path(checkpoints_dir) / kLatest, error);
  if (error || !parse_step_name(target.string())) return std::nullopt;
  const fs::path path = fs::path(checkpoints_dir) / target;
  // During a replacement without exchange, or after it was interrupted, the old checkpoint is at .old-step-N.
  const fs::path old = fs::path(checkpoints_dir) / fmt::format("{}{}", kOld, target.string());
  if (fs::is_directory(path, error)) return path;
  if (fs::is_directory(old, error)) return old;
  return std::nullopt;
}

void remove_old(const std::string& checkpoints_dir, int64_t step, int keep_latest_k) {
  if (keep_latest_k == 0) return;
  std::vector<int64_t> steps = list_steps(checkpoints_dir);
  const auto abandoned = std::partition(steps.begin(), steps.end(), [&](int64_t other) { return other <= step; });
  std::sort(steps.begin(), abandoned, std::greater<>());
  std::sort(abandoned, steps.end(), std::greater<>());
  const auto latest = follow_latest(checkpoints_dir);
  for (std::size_t i = static_cast<std::size_t>(keep_latest_k); i < steps.size(); ++i) {
    const std::string name = step_name(steps[i]);
    if (steps[i] == step || (latest && fs::path(*latest).filename() == name)) continue;
    remove_tree(checkpoints_dir, name);
  }
}

}  // namespace orthant
