// Output of the commands, of which no error may be lost: the standard streams, whatever the shell did to them, and the
// files that options name.
#pragma once

#include <ios>
#include <string>

namespace orthant {

/// Call this first. Opens closed streams to /dev/null; otherwise the next opened files would get their descriptors and
/// receive the output. Ignores SIGPIPE and SIGXFSZ, so that a closed reader (`| head`) and a file-size limit become
/// write errors.
void make_streams_safe();

/// Throws Error if output to stdout was lost. A reader that has closed its end is no error, because it wanted no more.
void require_printed();

/// Writes a text to the file of an option, such as --svg. Throws DataError with the option, the path and the reason.
void write_file(const std::string& option, const std::string& path, const std::string& text,
                std::ios::openmode mode = std::ios::trunc);

}  // namespace orthant
