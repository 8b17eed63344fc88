// The directory of checkpoints: names of its members, leftovers of a crash, the latest checkpoint, removal of old ones.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace orthant {

/// Name of a checkpoint's directory, for example "step-000100".
std::string step_name(int64_t step);

/// Steps of all members named step-N, in ascending order. Empty if the directory does not exist.
std::vector<int64_t> list_steps(const std::string& checkpoints_dir);

/// Whether the folder of this checkpoint has another one. False if the folder cannot be read.
bool has_other_checkpoint(const std::string& checkpoint);

/// Names of the members that an interrupted save or removal has left, sorted. The next save removes or restores them.
std::vector<std::string> list_leftovers(const std::string& checkpoints_dir);

/// Removes temporaries of an interrupted save, and finishes or undoes an interrupted replacement (see move_into_place).
void remove_leftovers(const std::string& checkpoints_dir);

/// The path of the temporary member that move_into_place() renames to step-N.
std::string temporary_of(const std::string& checkpoints_dir, int64_t step);
/// Creates it, empty. Returns its path.
std::string make_temporary(const std::string& checkpoints_dir, int64_t step);

/// Renames the temporary of `step` to its final name, and makes that durable. An existing checkpoint of the step is
/// exchanged in one atomic operation if the file system supports it. Otherwise, or with `exchange` false, it is first
/// moved to .old-step-N. If the process dies in between, remove_leftovers() and find_latest() still find it there.
std::string move_into_place(const std::string& checkpoints_dir, int64_t step, bool exchange = true);

/// Makes `latest` a symbolic link to step-N, atomically and durably.
void point_latest(const std::string& checkpoints_dir, int64_t step);
/// The target of `latest`, if that is a link to an existing member step-N.
std::optional<std::string> follow_latest(const std::string& checkpoints_dir);

/// Keeps `step`, the target of `latest`, and the newest others, up to `keep_latest_k` in all (0 = all); removes the
/// rest. Steps after `step` are removed first: a run that resumed from an earlier checkpoint has abandoned them.
void remove_old(const std::string& checkpoints_dir, int64_t step, int keep_latest_k);

}  // namespace orthant
