// Operations on tensors that the transport cannot read, such as those of a GPU, through copies in host memory.
#pragma once

#include <memory>

#include "comm/group.h"

namespace orthant {

/// Returns a group for tensors of any device. An operation copies its input to host memory and then runs there over
/// `host`. This rank waits for the copy, except in a sum that starts after another operation (StartAfter): there, the
/// thread that runs `make` copies. wait() copies the result back on the current stream. Copies of GPU tensors are in
/// pinned memory. Sums have the bits of the CPU. `position`: of this rank in the group.
std::unique_ptr<Group> staged_group(std::unique_ptr<Group> host, int position);

}  // namespace orthant
