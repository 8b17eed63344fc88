// The directory of checkpoints: names of its members, what is left over from a crash, which one is the latest.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace orthant {

/// "step-000100".
std::string step_name(int64_t step);

/// The steps of all members named step-N, ascending. A directory that does not exist has none.
std::vector<int64_t> list_steps(const std::string& checkpoints_dir);

/// Removes temporaries of an interrupted save, and finishes or undoes an interrupted replacement (see put_in_place).
void remove_leftovers(const std::string& checkpoints_dir);

/// The directory of a fresh temporary member that becomes step-N by put_in_place.
std::string make_temporary(const std::string& checkpoints_dir, int64_t step);

/// Renames the temporary of `step` to its final name and makes that durable. A checkpoint that is already there is
/// replaced in one exchange where the file system can, else (`exchange` false forces it) moved to .old-step-N first,
/// from where remove_leftovers and find_latest take it back if the process dies in between.
std::string put_in_place(const std::string& checkpoints_dir, int64_t step, bool exchange = true);

/// Makes `latest` a symbolic link to step-N, atomically and durably.
void point_latest(const std::string& checkpoints_dir, int64_t step);
/// The directory that `latest` leads to, if it is a link to an existing member step-N.
std::optional<std::string> follow_latest(const std::string& checkpoints_dir);

/// Keeps `step`, what `latest` names, and the newest others up to `keep_latest_k` in all (0 = all); removes the rest.
/// Steps beyond `step` belong to a course of training that was abandoned by resuming earlier: they are the first to go.
void remove_old(const std::string& checkpoints_dir, int64_t step, int keep_latest_k);

}  // namespace orthant
