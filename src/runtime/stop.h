// Requests to stop a run, or another command that must tidy up: SIGINT, SIGTERM, SIGUSR1 (a launcher's notice), and
// SIGHUP unless it is ignored. A process starts in the exit mode. train_rank() changes to the recording mode before it
// connects to the other ranks. A recorded signal reaches all ranks with the statistics of the next step, so all stop
// after the same step.
#pragma once

#include <string>

namespace orthant {

/// Blocks these signals in the calling thread, and in threads and processes that it starts later. The two functions
/// below unblock them. A rank that still loads libraries then cannot die without a message.
void block_stop_signals();
/// Exit mode: a signal ends the process with kInterrupted. `prints`: with a message on stderr.
void end_on_stop_signals(bool prints);
/// Recording mode: the first signal is recorded. `prints`: with an answer on stderr. A SIGINT more than 1 s after the
/// first SIGINT kills the process without saving. An earlier one is ignored, because a terminal and a wrapper may
/// both deliver one Ctrl-C.
void record_stop_signals(bool prints);

/// Changes only the printed answer: the steps are done, and the sample and the report remain.
void set_training_complete();

/// The first signal that was recorded, or 0.
int stop_signal();
/// Ends the process as the exit mode does. A rank that recorded a signal calls it if the ranks have not connected yet:
/// other ranks may have been in the exit mode and are gone.
[[noreturn]] void exit_on_signal(int signal);

}  // namespace orthant
