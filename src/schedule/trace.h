// Exports a Timeline as a Chrome trace, for Perfetto and chrome://tracing.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "schedule/simulate.h"

namespace orthant {

/// Prefix of the Action in an event's name, as in PyTorch: "PP:2F0".
inline constexpr std::string_view kTracePrefix = "PP:";

/// Writes the Timeline as JSON trace events, with one process per pipeline rank and one thread per stream. Overlapping
/// spans of a stream get separate threads, because viewers draw the spans of one thread as a stack. An arrow (flow
/// event) leads from each SEND to the computation that reads its message. Times are whole nanoseconds; a Timeline in
/// another unit is written as if the unit were the second. `notes` and the unit become "otherData", which viewers show.
std::string chrome_trace(const Timeline& timeline, const std::vector<std::pair<std::string, double>>& notes = {});

}  // namespace orthant
