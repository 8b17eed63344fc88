// Whether another process of this machine still lives: the fact that tells a dead rank from a slow one.
#pragma once

#include <string>

namespace orthant {

enum class Life { elsewhere, running, stopped, gone };

/// Names this process for others: machine (this boot, this pid namespace), pid, and start time, so that a pid used
/// again is not taken for it.
std::string process_identity();
/// What became of the process so named; `elsewhere` when it runs on another machine (or in another container).
Life life_of(const std::string& identity);
/// Its pid, for messages.
int pid_of(const std::string& identity);

/// Names the process that started this one: the same for all ranks that one local launcher started, and for no other
/// run.
std::string parent_key();

/// Asks the kernel to kill this process when the one that launched it dies. For ranks that our launcher spawned; it
/// does nothing elsewhere. To be called at the start of main, in the main thread.
void die_with_parent();

}  // namespace orthant
