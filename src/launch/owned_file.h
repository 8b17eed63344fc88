// Checks of files that another user could have planted or can read, such as those in /tmp.
#pragma once

#include <sys/types.h>

#include <string>

namespace orthant {

/// Returns why an open file cannot be trusted, as a clause ("it belongs to the user with id 1000"); empty if it can. It
/// must be a regular file that belongs to this user, and must have none of the `forbidden` permissions, such as
/// S_IWOTH.
std::string why_not_owned(int fd, mode_t forbidden);

/// Opens an existing file of this user in a folder where others may write, for example with O_RDWR. Returns -1 if it
/// does not exist. A symbolic link is not followed: throws CommError with the reason and a way out if the path is one,
/// if the file belongs to another user, if others may write it, or if it cannot be opened.
int open_owned(const std::string& path, int flags);

/// Returns the first 4096 bytes of such a file; empty if it does not exist.
std::string read_owned(const std::string& path);

/// Creates a file with a text that only this user can read and write. Throws CommError if the path exists already, even
/// as a symbolic link, or if it cannot be written.
void create_owned(const std::string& path, const std::string& text);

}  // namespace orthant
