// A picture of a Timeline, for people.
#pragma once

#include <string>
#include <string_view>

#include "schedule/schedule.h"
#include "schedule/simulate.h"

namespace orthant {

/// A self-contained SVG, one band a rank with time to the right: computation in boxes colored by kind with the
/// microbatch inside where it fits, communication in thin lanes below, peak live activations at the right, legend on
/// top. Later stages of one rank are lower and paler. Readable on light and on dark ground, and by color-blind readers.
/// `what`, XML text, heads it: "Planned zb_v".
std::string draw_svg(const Schedule& schedule, const Timeline& timeline, std::string_view what);

}  // namespace orthant
