// How a run is asked to stop: by SIGINT, SIGTERM, SIGUSR1 (a launcher's notice) or SIGHUP (unless it is ignored).
// Before the first step there is nothing to save, and the process ends with a word; from then on the signal is a note
// that the next step shares with all ranks, so that all stop behind the same step.
#pragma once

#include <string>

namespace orthant {

/// Keeps the signals back, also in the processes started from now on, until these end_on or note them: a rank that is
/// still loading its libraries must not die of one without a word.
void hold_stop_signals();
/// From now on the signals end the process with kInterrupted. `speak`: and say so on stderr.
void end_on_stop_signals(bool speak);
/// From now on they are only noted; `speak`: and answered with a line on stderr. A second SIGINT ends the process at
/// once, unless it comes within a second: a terminal and a wrapper between us may both deliver the one that a user
/// asked for.
void note_stop_signals(bool speak);

/// From now on what is left is the sample and the report, and the answer says so.
void note_that_all_is_trained();

/// The signal noted first, or 0.
int stop_signal();
/// "SIGTERM".
std::string name_of_signal(int signal);
/// Ends the process as end_on_stop_signals() would have for the signal noted: where the other ranks have ended so.
[[noreturn]] void end_before_first_step(int signal);

}  // namespace orthant
