// Requests to stop a run: SIGINT, SIGTERM, SIGUSR1 (a launcher's notice), and SIGHUP unless it is ignored. Before the
// first step there is nothing to save, so the process prints a line and ends. Later, the signal is only recorded; the
// next step shares it with all ranks, so that all stop after the same step.
#pragma once

#include <string>

namespace orthant {

/// Blocks these signals, also in processes started from now on, until end_on_stop_signals() or record_stop_signals() is
/// called. A rank that is still loading its libraries must not die of one without a message.
void hold_stop_signals();
/// From now on, these signals end the process with kInterrupted. `prints`: print a message on stderr first.
void end_on_stop_signals(bool prints);
/// From now on, these signals are only recorded. `prints`: answer with a line on stderr. A second SIGINT ends the
/// process at once, unless it comes within one second of the first. In that case a terminal and a wrapper process may
/// both have delivered the one that the user sent.
void record_stop_signals(bool prints);

/// From now on only the sample and the report are left to do, and the answer to a signal says so.
void note_that_all_is_trained();

/// The first signal that was recorded, or 0.
int stop_signal();
/// Name of a signal, for example "SIGTERM".
std::string name_of_signal(int signal);
/// Ends the process as end_on_stop_signals() would for this signal. For a rank that recorded the signal while the other
/// ranks ended so.
[[noreturn]] void end_before_first_step(int signal);

}  // namespace orthant
