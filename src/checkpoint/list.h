// Lists the checkpoints in a folder, with their properties, and the leftovers of interrupted saves.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace orthant {

/// A checkpoint as its manifest and the sizes of its files show it. Only what could be read has a value.
struct ListedCheckpoint {
  std::string name;  // of its directory
  int64_t step = 0;
  int64_t bytes = 0;                    // of its files on disk
  std::optional<int64_t> saved_unix_s;  // when its manifest was written, in seconds since 1970
  std::string dtype, mesh;              // of the run that saved it
  std::optional<int64_t> num_tensors;
  bool is_latest = false;  // `latest` points to it
  std::string problem;     // why it is not complete; empty if it is
  bool is_complete() const { return problem.empty(); }
};

struct CheckpointList {
  std::string directory;                      // the folder of the checkpoints
  std::vector<ListedCheckpoint> checkpoints;  // in the order of their steps
  std::vector<std::string> leftovers;         // left by interrupted saves; the next save removes or restores them
  bool has_latest = false;                    // `latest` points to an existing checkpoint
};

/// `directory` is a run folder, its folder of checkpoints, or one checkpoint. Files are compared by size only. Throws
/// DataError if the directory does not exist or has no checkpoints.
CheckpointList list_checkpoints(const std::string& directory);

}  // namespace orthant
