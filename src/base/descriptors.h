// The limit of file descriptors of this process. Every open file, socket and event takes one.
#pragma once

#include <cstdint>
#include <string>

namespace orthant {

/// Raises the soft limit of this process to its hard limit, up to which every user may go. Child processes inherit it.
/// Returns the limit in force afterwards.
int64_t raise_descriptor_limit();

/// Raises the limit if it is below `least`. Throws CommError if the hard limit is lower; `purpose` says what the
/// descriptors are for, such as "the connections of 64 ranks".
void require_descriptors(int64_t least, const std::string& purpose);

/// If nearly all descriptors are in use, ". N of M file descriptors are in use: ..." with a way out, to be added to the
/// error of an operation that may have failed for this reason. Otherwise empty.
std::string descriptor_problem();

}  // namespace orthant
