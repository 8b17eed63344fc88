// Draws a Timeline as an SVG image.
#pragma once

#include <string>
#include <string_view>

#include "schedule/schedule.h"
#include "schedule/simulate.h"

namespace orthant {

/// Returns a self-contained SVG with one band per rank; time runs to the right. A computation is a box colored by kind,
/// with the microbatch inside if it fits. Communication streams are thin lines below. Peak live activations are at the
/// right, the legend is on top. Later stages of one rank are lower and paler. The image is readable on light and dark
/// backgrounds and for color-blind readers. `what` is the title, such as "Planned zb_v", already escaped for XML.
std::string draw_svg(const Schedule& schedule, const Timeline& timeline, std::string_view what);

}  // namespace orthant
