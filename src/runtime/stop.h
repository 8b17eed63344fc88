// How a run is asked to stop: SIGTERM, SIGUSR1 (a launcher's notice), SIGHUP (unless ignored) and SIGINT set a flag that the next step shares
// with all ranks, so that all stop behind the same step.
#pragma once

namespace orthant {

enum class StopRequest { none, terminate, interrupt };

/// From now on SIGTERM, SIGUSR1, SIGHUP and SIGINT only set the flag; a second SIGINT ends the process at once.
void catch_stop_signals();
StopRequest stop_request();

}  // namespace orthant
