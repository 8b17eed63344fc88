// Makes the standard streams safe, whatever the shell did to them: no error may be lost, and no log may end up in a
// data file.
#pragma once

namespace orthant {

/// Call this first. Opens closed streams to /dev/null; otherwise the next opened files would get their descriptors and
/// receive the output. Ignores SIGPIPE and SIGXFSZ, so that a closed reader (`| head`) and a file-size limit become
/// write errors.
void make_streams_safe();

/// Throws Error if output to stdout was lost. A reader that has closed its end is no error, because it wanted no more.
void require_printed();

}  // namespace orthant
