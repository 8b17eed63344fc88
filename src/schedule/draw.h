// Pictures of a Timeline: an SVG for people, a Chrome trace for Perfetto and chrome://tracing.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "schedule/schedule.h"
#include "schedule/simulate.h"

namespace orthant {

/// A self-contained SVG, one band a rank with time to the right: computation in boxes colored by kind with the
/// microbatch inside where it fits, communication in thin lanes below, peak live activations at the right, legend on
/// top. Later stages of one rank are paler. Readable on light and on dark ground, and by color-blind readers.
std::string draw_svg(const Schedule& schedule, const Timeline& timeline);

/// Chrome trace events, one process a rank, one thread a lane; spans that overlap in a lane get threads of their own,
/// since viewers draw one thread's spans as a stack. Names are PyTorch's: "PP:2F0". Viewers show the notes beside it.
std::string chrome_trace(const Timeline& timeline, const std::vector<std::pair<std::string, double>>& notes = {});

}  // namespace orthant
