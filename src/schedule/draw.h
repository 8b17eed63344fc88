// Draws a Timeline as an SVG image.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "schedule/schedule.h"
#include "schedule/simulate.h"

namespace orthant {

/// Memory of one pipeline rank over the Actions of its row.
struct MemoryCurve {
  int pipeline_rank = 0;
  std::string title;                // "memory of rank 12"
  int64_t base_bytes = 0;           // held all the time
  std::vector<int64_t> bytes = {};  // on top of it: the most during each Action of the row
  int64_t limit_bytes = 0;          // the most that the tensors may take; 0: not known
  std::string limit_text = {};      // says whose limit it is
};

/// Returns a self-contained SVG with one band per rank; time runs to the right. A computation is a box colored by kind,
/// with the microbatch inside if it fits. Communication streams are thin lines below. With several ranks, peak live
/// activations are at the right. The legend is on top. Later stages of one rank are lower and paler. The image is
/// readable on light and dark backgrounds and for color-blind readers. `what` is the title, such as "Planned zb_v",
/// already escaped for XML. With `memory`, its curve is below the bands, over the same time.
std::string draw_svg(const Schedule& schedule, const Timeline& timeline, std::string_view what,
                     const MemoryCurve* memory = nullptr);

}  // namespace orthant
