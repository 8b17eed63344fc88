// Draws a Timeline as SVG text, without a graphics library.
#include "schedule/draw.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <iterator>
#include <map>
#include <set>

#include "base/errors.h"
#include "base/text.h"

namespace orthant {
namespace {

constexpr double kWidth = 1200, kLeft = 64, kRight = 64, kTop = 84, kLegendLine = 20, kBottom = 40;
constexpr double kBox = 30, kThin = 7, kGap = 10;
constexpr double kCurve = 120, kCurveTop = 44;  // height of the memory curve, and room for its title above it
constexpr double kLowestBox = 16, kPale = 0.6;  // height of a rank's last stage; opacity of all but its first stage
constexpr double kThinnest = 0.1;     // the legend leaves out kinds that are never wider, because nobody would see them
constexpr size_t kMostTitles = 5000;  // drawings with more boxes have no tooltips

constexpr std::string_view kStyle = R"(<style>
text{font:12px system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif;fill:#24292f}
.head{font-size:16px;font-weight:600}.dim{fill:#6e7781}.box{font-size:11px;text-anchor:middle}
.ground{fill:#ffffff}.band{fill:#f0f2f5}.line{stroke:#d0d7de;stroke-width:1}
.dark{fill:#1b1f24}.pale{fill:#ffffff}.memory{fill:#0072b2;fill-opacity:0.55}.base{fill:#0072b2;fill-opacity:0.8}
.limit{stroke:#d55e00;stroke-width:1.5;stroke-dasharray:6 4}
@media (prefers-color-scheme:dark){text{fill:#e6edf3}.dim{fill:#8d96a0}.ground{fill:#0d1117}.band{fill:#1c2128}
.line{stroke:#30363d}.dark{fill:#1b1f24}.pale{fill:#ffffff}}
</style>
)";

/// The time axis, with ticks at round numbers. The unit is s, ms or us. For a Timeline in another unit the axis has
/// bare numbers, and the unit stands at its end.
struct Scale {
  double makespan;
  double unit_s = 1;
  std::string unit;
  double tick_s = 1;

  Scale(double total_s, bool seconds) : makespan(total_s > 0 ? total_s : 1), unit(seconds ? " s" : "") {
    if (!seconds) {
      // Bare numbers: keep the empty unit.
    } else if (makespan < 1e-3) {
      unit_s = 1e-6, unit = " us";
    } else if (makespan < 1) {
      unit_s = 1e-3, unit = " ms";
    }
    const double raw = makespan / 10;
    const double decade = std::pow(10, std::floor(std::log10(raw)));
    tick_s = 10 * decade;
    for (const double step : {1, 2, 5})
      if (tick_s == 10 * decade && raw <= step * decade * (1 + 1e-9)) tick_s = step * decade;
  }
  double x(double at_s) const { return kLeft + at_s / makespan * (kWidth - kLeft - kRight); }
  std::string text(double at_s) const {
    return fmt::format("{:.4g}{}", at_s / unit_s, unit);
  }
};

/// Vertical layout of the bands: the computation, then a thin line for each communication stream in use.
struct Bands {
  std::array<double, 4> offset{};
  double height = kBox;
  double pitch = 0;
  double top = kTop;

  explicit Bands(const Timeline& timeline) {
    std::array<bool, 4> used{};
    for (const Span& span : timeline.spans) used[static_cast<size_t>(span.stream)] = true;
    for (size_t stream = 1; stream < used.size(); ++stream) {
      if (!used[stream]) continue;
      offset[stream] = height + 2;
      height += kThin + 2;
    }
    pitch = height + kGap;
  }
  double y(int rank) const { return top + rank * pitch; }
};

/// Whether white text is easier to read on the color than dark text.
bool wants_pale_text(std::string_view color) {
  const auto channel = [&](size_t at) {
    int value = 0;
    std::from_chars(color.data() + at, color.data() + at + 2, value, 16);
    return value;
  };
  return 0.299 * channel(1) + 0.587 * channel(3) + 0.114 * channel(5) < 140;
}

/// Number of stages of the same rank that come before this one.
int chunk(const Schedule& schedule, int stage) {
  const auto& owner = schedule.stage_owner;
  return static_cast<int>(std::count(owner.begin(), owner.begin() + stage, owner[static_cast<size_t>(stage)]));
}

class Drawing {
 public:
  Drawing(const Schedule& schedule, const Timeline& timeline, std::string_view what, const MemoryCurve* memory)
      : schedule_(schedule),
        timeline_(timeline),
        what_(what),
        memory_(memory),
        scale_(timeline.makespan, timeline.unit == "s"),
        bands_(timeline) {
    for (int stage = 0; stage < stage_count(schedule); ++stage) chunks_.push_back(chunk(schedule, stage));
    place_legend();
  }

  std::string svg() {
    const size_t ranks = schedule_.rows.size();
    const double bottom = bands_.y(static_cast<int>(ranks)) - kGap;
    const double height = bottom + kBottom + (memory_ != nullptr ? kCurveTop + kCurve + kGap : 0);
    put("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1:.0f}\" width=\"{0}\" height=\"{1:.0f}\" "
        "role=\"img\">\n",
        kWidth, height);
    put("<title>{}: pipeline schedule</title>\n", what_);
    out_ += kStyle;
    put("<rect class=\"ground\" width=\"{}\" height=\"{:.0f}\"/>\n", kWidth, height);
    heading();
    legend();
    axis(bottom);
    for (size_t rank = 0; rank < ranks; ++rank) band(static_cast<int>(rank));
    for (const Span& span : timeline_.spans) box(span);
    if (memory_ != nullptr) memory_curve(bottom + kBottom + kCurveTop);
    out_ += "</svg>\n";
    return std::move(out_);
  }

 private:
  template <typename... Values>
  void put(fmt::format_string<Values...> format, Values&&... values) {
    fmt::format_to(std::back_inserter(out_), format, std::forward<Values>(values)...);
  }

  void heading() {
    const size_t ranks = schedule_.rows.size();
    const int microbatches = microbatch_count(schedule_);
    const std::string of_ranks = ranks > 1 ? fmt::format("{} pipeline ranks, ", ranks) : "";
    put("<text class=\"head\" x=\"{}\" y=\"30\">{}: {}{} microbatch{}</text>\n", kLeft, what_, of_ranks, microbatches,
        microbatches == 1 ? "" : "es");
    const bool chunks = std::any_of(chunks_.begin(), chunks_.end(), [](int c) { return c > 0; });
    const std::string unit = timeline_.unit == "s" ? "" : " " + timeline_.unit;
    put("<text class=\"dim\" x=\"{}\" y=\"{}\" text-anchor=\"end\">{}makespan {}{}, bubble {:.1f} %</text>\n",
        kWidth - kRight - 40, bands_.top - 10,
        !chunks     ? ""
        : ranks > 1 ? "low and pale bars are later stages of a rank; "
                    : "low and pale bars are later layers; ",
        scale_.text(timeline_.makespan), unit, 100 * timeline_.bubble);
    if (ranks == 1) return;
    put("<text class=\"dim\" x=\"{}\" y=\"{}\" text-anchor=\"end\">peak in flight</text>\n", kWidth - 8,
        bands_.top - 10);
  }

  /// Computes the positions of the legend's entries, and moves the bands down if it needs more than one line.
  void place_legend() {
    std::set<ActionKind> used;
    for (const Span& span : timeline_.spans)
      if (scale_.x(span.end) - scale_.x(span.start) >= kThinnest) used.insert(span.action.kind);
    std::set<std::string_view> shown;
    double x = kLeft, y = 0;
    for (const KindFacts& kind : action_kinds()) {
      if (!used.contains(kind.kind) || !shown.insert(kind.meaning).second) continue;
      const double width = 20 + 6.6 * static_cast<double>(kind.meaning.size()) + 18;
      if (x > kLeft && x + width > kWidth - kRight) x = kLeft, y += kLegendLine;
      legend_.push_back({&kind, x, y});
      x += width;
    }
    bands_.top = kTop + y;
  }

  void legend() {
    for (const auto& [kind, x, y] : legend_) {
      const bool thin = kind->stream != Stream::compute;
      put("<rect x=\"{:.1f}\" y=\"{}\" width=\"14\" height=\"{}\" rx=\"2\" fill=\"{}\"/>\n", x,
          y + (thin ? 51.5 : 48.0), thin ? 7 : 14, kind->color);
      put("<text x=\"{:.1f}\" y=\"{}\">{}</text>\n", x + 20, y + 59, kind->meaning);
    }
  }

  void axis(double bottom) {
    for (int i = 0; i * scale_.tick_s <= scale_.makespan * (1 + 1e-9); ++i) {
      const double x = scale_.x(i * scale_.tick_s);
      put("<line class=\"line\" x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1}\" y2=\"{2:.1f}\"/>\n", x, bands_.top - 4,
          bottom + 6);
      put("<text class=\"dim\" x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{}</text>\n", x, bottom + 22,
          scale_.text(i * scale_.tick_s));
    }
    if (timeline_.unit == "s") return;
    put("<text class=\"dim\" x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>\n", kWidth - 8, bottom + 36,
        timeline_.unit);
  }

  void band(int rank) {
    const double y = bands_.y(rank);
    put("<rect class=\"band\" x=\"{}\" y=\"{:.1f}\" width=\"{}\" height=\"{}\"/>\n", kLeft, y, kWidth - kLeft - kRight,
        kBox);
    put("<text x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">rank {}</text>\n", kLeft - 10, y + kBox / 2 + 4, rank);
    if (schedule_.rows.size() == 1) return;
    put("<text class=\"dim\" x=\"{}\" y=\"{:.1f}\">{}</text>\n", kWidth - kRight + 12, y + kBox / 2 + 4,
        timeline_.peak_in_flight[static_cast<size_t>(rank)]);
  }

  void box(const Span& span) {
    const KindFacts& kind = facts(span.action.kind);
    const bool thin = span.stream != Stream::compute;
    const double x = scale_.x(span.start);
    const double width = scale_.x(span.end) - x;
    if (width <= 0) return;
    const int chunk = chunks_[static_cast<size_t>(span.action.stage)];
    const double height = thin ? kThin : box_height(chunk);
    const double y = bands_.y(span.rank) + bands_.offset[static_cast<size_t>(span.stream)] + (thin ? 0 : kBox - height);
    const double seam = std::min(0.8, width / 4);  // gap to the neighboring box
    put("<rect x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{:.4g}\"", x + seam / 2, y, width - seam, height);
    if (width > 8 && !thin) put(" rx=\"2\"");
    put(" fill=\"{}\"", kind.color);
    if (chunk > 0) put(" fill-opacity=\"{}\"", kPale);
    if (timeline_.spans.size() <= kMostTitles) {
      put("><title>{}: {} to {}</title></rect>\n", to_string(span.action), scale_.text(span.start),
          scale_.text(span.end));
    } else {
      put("/>\n");
    }
    const std::string number = std::to_string(span.action.microbatch);
    if (thin || span.action.microbatch < 0 || width < 7.0 * static_cast<double>(number.size()) + 4) return;
    const std::string_view ink = chunk > 0 ? "" : wants_pale_text(kind.color) ? " pale" : " dark";
    put("<text class=\"box{}\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n", ink, x + width / 2, y + height / 2 + 4, number);
  }

  /// Draws the memory as an area of steps. A message adds to the step of the pass before it, or to that of the
  /// first pass.
  void memory_curve(double top) {
    const std::vector<Action>& row = schedule_.rows[static_cast<size_t>(memory_->pipeline_rank)];
    std::map<Action, double> starts;
    for (const Span& span : timeline_.spans) {
      const bool is_pass = span.stream == Stream::compute;
      if (is_pass && span.rank == memory_->pipeline_rank) starts.emplace(span.action, span.start);
    }
    const int64_t most = memory_->base_bytes + (row.empty() ? 0 : std::ranges::max(memory_->bytes));
    const bool has_limit = memory_->limit_bytes > 0 && memory_->limit_bytes < 2 * most;
    const auto highest = static_cast<double>(std::max({most, has_limit ? memory_->limit_bytes : 0, int64_t{1}}));
    const double bottom = top + kCurve;
    const auto y = [&](int64_t bytes) { return bottom - kCurve * static_cast<double>(bytes) / highest; };
    put("<text x=\"{}\" y=\"{:.1f}\">{}: at most {}, of which {} all the time</text>\n", kLeft, top - 10,
        memory_->title, format_bytes(static_cast<double>(most)),
        format_bytes(static_cast<double>(memory_->base_bytes)));
    put("<path class=\"memory\" d=\"M{} {:.1f}", kLeft, bottom);
    const auto is_pass = [&](const Action& action) { return starts.contains(action); };
    const auto first = std::ranges::find_if(row, is_pass);
    double x = kLeft, at = first == row.end() ? kLeft : scale_.x(starts.at(*first));
    int64_t level = memory_->base_bytes;
    for (size_t i = 0; i < row.size(); ++i) {
      const int64_t bytes = memory_->base_bytes + memory_->bytes[i];
      const auto start = starts.find(row[i]);
      if (start != starts.end()) at = std::max(at, scale_.x(start->second));
      if (at == x) {
        level = std::max(level, bytes);
      } else if (bytes != level) {
        put("V{:.1f}H{:.2f}", y(level), at);
        level = bytes;
      }
      x = at;
    }
    put("V{:.1f}H{}V{:.1f}Z\"/>\n", y(level), kWidth - kRight, bottom);
    put("<rect class=\"base\" x=\"{}\" y=\"{:.1f}\" width=\"{}\" height=\"{:.1f}\"/>\n", kLeft, y(memory_->base_bytes),
        kWidth - kLeft - kRight, bottom - y(memory_->base_bytes));
    if (!has_limit) return;
    put("<line class=\"limit\" x1=\"{0}\" x2=\"{1}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\"/>\n", kLeft, kWidth - kRight,
        y(memory_->limit_bytes));
    put("<text class=\"dim\" x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>\n", kWidth - kRight - 4,
        y(memory_->limit_bytes) - 4, memory_->limit_text);
  }

  /// Height of a box. It decreases evenly from the rank's first stage to its last, because many different shades would
  /// be impossible to tell apart.
  double box_height(int chunk) const {
    const int most = *std::max_element(chunks_.begin(), chunks_.end());
    return kBox - (chunk > 0 ? (kBox - kLowestBox) * chunk / most : 0);
  }

  const Schedule& schedule_;
  const Timeline& timeline_;
  std::string_view what_;
  const MemoryCurve* memory_;  // may be null
  const Scale scale_;
  Bands bands_;
  std::vector<int> chunks_;  // index of the stage among those of its rank, by stage
  struct Entry {
    const KindFacts* kind;
    double x, y;
  };
  std::vector<Entry> legend_;  // kinds with at least one span that can be seen
  std::string out_;
};

}  // namespace

std::string draw_svg(const Schedule& schedule, const Timeline& timeline, std::string_view what,
                     const MemoryCurve* memory) {
  ORTHANT_CHECK(timeline.peak_in_flight.size() == schedule.rows.size(), timeline.peak_in_flight.size(),
                schedule.rows.size());
  if (memory != nullptr) {
    ORTHANT_CHECK(memory->bytes.size() == schedule.rows[static_cast<size_t>(memory->pipeline_rank)].size(),
                  memory->bytes.size());
  }
  return Drawing(schedule, timeline, what, memory).svg();
}

}  // namespace orthant
