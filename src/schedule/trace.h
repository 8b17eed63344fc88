// A Timeline as a Chrome trace, for Perfetto and chrome://tracing.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "schedule/simulate.h"

namespace orthant {

/// Before the Action in an event's name, as PyTorch has it: "PP:2F0".
inline constexpr std::string_view kTracePrefix = "PP:";

/// Trace events, one process a rank, one thread a lane; spans that overlap in a lane get threads of their own, since
/// viewers draw one thread's spans as a stack. Viewers show the notes beside it.
std::string chrome_trace(const Timeline& timeline, const std::vector<std::pair<std::string, double>>& notes = {});

}  // namespace orthant
