#include "hardware/fit.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <map>
#include <span>

#include "base/errors.h"

namespace orthant {
namespace {

struct Point {
  double x, y;
};
struct Line {
  double at_zero, slope;
};

// Returns the line with the smallest sum of squared relative errors, with at_zero >= 0 and slope > 0.
Line fit_line(const std::vector<Point>& points) {
  ORTHANT_CHECK(!points.empty(), "no measurement");
  double w = 0, wx = 0, wxx = 0, wy = 0, wxy = 0;
  for (const auto& [x, y] : points) {
    const double weight = 1 / (y * y);
    w += weight, wx += weight * x, wxx += weight * x * x, wy += weight * y, wxy += weight * x * y;
  }
  const double through_zero = wxy / wxx, determinant = w * wxx - wx * wx;
  const Line line = {(wxx * wy - wx * wxy) / determinant, (w * wxy - wx * wy) / determinant};
  if (!(determinant > 0) || line.at_zero < 0) return {0, through_zero};
  return line.slope > 0 ? line : Line{0, through_zero};
}

// Returns the line through the points of the smallest and the largest x; at_zero is the y of the smallest.
Line line_through_ends(const std::vector<Point>& points) {
  const auto [first, last] = std::ranges::minmax(points, {}, &Point::x);
  ORTHANT_CHECK(first.x < last.x, "two sizes must be measured");
  return last.y > first.y ? Line{first.y, (last.y - first.y) / last.x} : Line{0, last.y / last.x};
}

double log_error(double model, double measured) { return std::abs(std::log(model / measured)); }

double product_seconds(const Hardware& hardware, const MeasuredProduct& p) {
  return product_seconds(hardware, p.kind, p.m, p.k, p.n, p.dtype);
}
double attention_seconds(const Hardware& hardware, const MeasuredAttention& a) {
  return attention_seconds(hardware, a.backward, a.size, a.dtype);
}

double* peak_of(Hardware& hardware, const std::string& dtype) {
  PeakTable& peak = hardware.peak_flop_per_s;
  return dtype == "bfloat16" ? &peak.bfloat16 : dtype == "float32" ? &peak.float32 : &peak.float64;
}

void fit_memory(Hardware& hardware, const Measurements& measured) {
  std::vector<Point> points;
  for (const MeasuredKernel& kernel : measured.kernels) points.push_back({kernel.bytes, kernel.seconds});
  const Line line = fit_line(points);
  hardware.memory.bytes_per_s = 1 / line.slope;
  hardware.memory.latency_seconds = line.at_zero;
}

// Moves the peaks until the model is right for the median product of each dtype, because one share applies to all.
void fit_peaks(Hardware& hardware, const Measurements& measured) {
  for (const char* dtype : {"bfloat16", "float32", "float64"}) {
    std::vector<double> ratios;
    for (const MeasuredProduct& p : measured.products) {
      if (p.dtype == dtype) ratios.push_back(product_seconds(hardware, p) / p.seconds);
    }
    ORTHANT_CHECK(!ratios.empty(), dtype);
    std::ranges::nth_element(ratios, ratios.begin() + std::ssize(ratios) / 2);
    *peak_of(hardware, dtype) *= ratios[ratios.size() / 2];
  }
}

// The peaks begin as the highest measured rates. Shares and peaks are then fitted in turns.
void fit_products(Hardware& hardware, const Measurements& measured) {
  for (const MeasuredProduct& p : measured.products) {
    double& peak = *peak_of(hardware, p.dtype);
    peak = std::max(peak,
                    2.0 * static_cast<double>(p.m) * static_cast<double>(p.k) * static_cast<double>(p.n) / p.seconds);
  }
  ProductTable& model = hardware.products;
  const auto error = [&] {
    double sum = 0;
    for (const MeasuredProduct& p : measured.products) sum += log_error(product_seconds(hardware, p), p.seconds);
    return sum;
  };
  const auto set = [&](const std::vector<double>& x) {
    model.share = std::min(1.0, x[0]), model.weight_gradient_share = std::min(1.0, x[1]), model.latency_seconds = x[2];
    model.operand_traffic = std::min(100.0, x[3]);
  };
  const PeakTable peaks = hardware.peak_flop_per_s;
  double best = INFINITY;
  Hardware best_hardware = hardware;
  for (const auto& tile : {std::array<int64_t, 2>{1, 1}, {8, 16}, {16, 32}, {32, 64}, {64, 64}}) {
    model.tile = tile;
    hardware.peak_flop_per_s = peaks;
    std::vector<double> x = {0.8, 0.8, 5e-6, 0.3};
    for (int turn = 0; turn < 3; ++turn) {
      x = minimize(x, [&](const std::vector<double>& now) { return set(now), error(); });
      set(x);
      fit_peaks(hardware, measured);
    }
    if (const double now = error(); now < best) best = now, best_hardware = hardware;
  }
  hardware = best_hardware;
}

void fit_attention(Hardware& hardware, const Measurements& measured) {
  AttentionTable& model = hardware.attention;
  for (AttentionPassTable* pass : {&model.forward, &model.backward}) pass->tile_rows = 1;
  const auto error = [&](const std::vector<double>& x) {
    model.forward.share = std::min(1.0, x[0]), model.backward.share = std::min(1.0, x[1]);
    model.latency_seconds = x[2];
    double sum = 0;
    for (const MeasuredAttention& a : measured.attention) sum += log_error(attention_seconds(hardware, a), a.seconds);
    return sum;
  };
  error(minimize({0.3, 0.3, 1e-5}, error));
}

// Returns the points of a collective over a group, as ranks with a core each would measure them.
std::vector<Point> points_of(const std::vector<MeasuredCollective>& measured, const MeasuredCollective& group,
                             double ranks_per_core) {
  std::vector<Point> points;
  for (const MeasuredCollective& c : measured) {
    if (c.kind == group.kind && c.ranks == group.ranks) points.push_back({c.bytes_sent, c.seconds / ranks_per_core});
  }
  return points;
}

// `ranks_per_core`: how many ranks shared a core while groups of a size were measured.
LinkTable fit_links(const std::vector<MeasuredCollective>& measured, const std::string& origin,
                    const std::function<double(int64_t ranks)>& ranks_per_core,
                    const std::function<Line(const std::vector<Point>&)>& fit) {
  std::map<CollectiveKind, std::map<int64_t, Line>> lines;
  double slope = INFINITY;
  for (const MeasuredCollective& c : measured) {
    Line& line = lines[c.kind][c.ranks] = fit(points_of(measured, c, ranks_per_core(c.ranks)));
    slope = std::min(slope, line.slope);
  }
  LinkTable link = {.origin = origin, .bytes_per_s = 1 / slope};
  const auto share = [&](const Line& line) { return std::min(1.0, slope / line.slope); };
  ORTHANT_CHECK(lines.contains(CollectiveKind::shift), "no message was measured");
  const Line& message = lines[CollectiveKind::shift].begin()->second;
  link.message = {.origin = origin, .share = share(message), .latency_seconds = message.at_zero};
  const std::pair<CollectiveKind, std::vector<CollectiveTable>*> tables[] = {
      {CollectiveKind::all_reduce, &link.all_reduce},
      {CollectiveKind::all_gather, &link.all_gather},
      {CollectiveKind::reduce_scatter, &link.reduce_scatter},
      {CollectiveKind::all_to_all, &link.all_to_all}};
  for (const auto& [kind, entries] : tables) {
    ORTHANT_CHECK(lines.contains(kind), name_of(kind));
    for (const auto& [ranks, line] : lines[kind]) {
      entries->push_back({.origin = origin, .ranks = ranks, .share = share(line), .latency_seconds = line.at_zero});
    }
    entries->back().ranks = 0;  // larger groups are assumed to be like the largest measured one
  }
  return link;
}

// Returns how many ranks of a host shared a core while a group of this size was measured.
double ranks_per_core(const Measurements& measured, int64_t ranks) {
  return std::max(1.0, static_cast<double>(ranks) / static_cast<double>(measured.cores));
}

// A network that no measurement on one host can reach.
void assume_network(LinkTable& link) {
  const std::string origin = "assumed: 10 Gb/s network; orthant calibrate on several hosts measures it";
  link = {.origin = origin, .bytes_per_s = 1.25e9};
  link.message = {.origin = origin, .share = 0.8, .latency_seconds = 50e-6};
  for (auto* entries : {&link.all_reduce, &link.all_gather, &link.reduce_scatter, &link.all_to_all}) {
    *entries = {{.origin = origin, .share = 0.7, .latency_seconds = 100e-6, .step_seconds = 50e-6}};
  }
}

}  // namespace

std::vector<double> minimize(std::vector<double> x, const std::function<double(const std::vector<double>&)>& loss) {
  double best = loss(x);
  for (double step = 1.5; step > 1.001;) {
    bool is_better = false;
    for (double& value : x) {
      for (const double factor : {step, 1 / step}) {
        const double before = value;
        value *= factor;
        if (const double now = loss(x); now < best) {
          best = now;
          is_better = true;
          break;
        }
        value = before;
      }
    }
    if (!is_better) step = std::sqrt(step);
  }
  return x;
}

LinkTable fit_network(const std::vector<MeasuredCollective>& measured, const std::string& origin) {
  return fit_links(
      measured, origin, [](int64_t) { return 1.0; }, line_through_ends);
}

Hardware fit_hardware(const Measurements& measured) {
  const std::string origin = fmt::format("measured: {}, orthant calibrate, {}", measured.host, measured.date);
  Hardware hardware;
  hardware.name = measured.host;
  hardware.description = fmt::format("{} cores that all ranks of the host share", measured.cores);
  constexpr int64_t kMostRanks = 1024;
  hardware.device = {.origin = origin,
                     .per_host = kMostRanks,
                     .compute_units = 1,
                     .memory_bytes = measured.memory_bytes,
                     .communication_uses_compute = true,
                     .shared_cores = measured.cores};
  for (std::string* table :
       {&hardware.peak_flop_per_s.origin, &hardware.memory.origin, &hardware.products.origin,
        &hardware.attention.origin, &hardware.attention.forward.origin, &hardware.attention.backward.origin}) {
    *table = origin;
  }
  hardware.step = {.origin = "assumed: as kernels alone"};
  fit_memory(hardware, measured);
  fit_products(hardware, measured);
  fit_attention(hardware, measured);
  hardware.same_host = fit_links(
      measured.collectives, origin, [&](int64_t ranks) { return ranks_per_core(measured, ranks); }, fit_line);
  assume_network(hardware.between_hosts);
  hardware.process_memory = {.origin = origin + "; the slack is assumed",
                             .context_bytes = measured.process_bytes,
                             .communicator_bytes = measured.group_bytes,
                             .allocator_slack_share = 0.05};
  return hardware;
}

FitErrors fit_errors(const Hardware& hardware, const Measurements& measured) {
  const auto mean = [](const auto& samples, const auto& model) {
    double sum = 0;
    for (const auto& sample : samples) sum += std::abs(model(sample) / sample.seconds - 1);
    return samples.empty() ? 0.0 : sum / static_cast<double>(samples.size());
  };
  return {.products = mean(measured.products, [&](const auto& p) { return product_seconds(hardware, p); }),
          .attention = mean(measured.attention, [&](const auto& a) { return attention_seconds(hardware, a); }),
          .kernels = mean(measured.kernels, [&](const auto& k) { return kernel_seconds(hardware, k.bytes); }),
          .collectives = mean(measured.collectives, [&](const auto& c) {
            const double turns = ranks_per_core(measured, c.ranks);
            return turns * collective_seconds(hardware, c.kind, {.ranks = c.ranks}, c.bytes_sent);
          })};
}

}  // namespace orthant
