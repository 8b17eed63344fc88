// The standard streams: what a shell may have done to them must turn no error into silence, and no log into a data
// file.
#pragma once

namespace orthant {

/// To be called first. Closed streams become /dev/null: their numbers would go to the next files opened, and what is
/// printed would land there. A reader that leaves (`| head`) and a file-size limit are errors of the write, no signals.
void make_streams_safe();

/// Throws Error if something printed could not be written: what was asked for must have been. A reader that has left
/// has seen enough.
void require_printed();

}  // namespace orthant
