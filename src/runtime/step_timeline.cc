// Gathers the intervals of all pipeline ranks and compares their clocks. The all-gather carries 16 bytes per Action.
#include "runtime/step_timeline.h"

#include "base/errors.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>

namespace orthant {
namespace {

double seconds_of(Clock::time_point time) { return std::chrono::duration<double>(time.time_since_epoch()).count(); }

struct ClockOffset {
  double ahead_s = 0;  // compared with the first rank's clock
  double error_s = std::numeric_limits<double>::infinity();
};

// Clock offset of the peer, from the shortest of several round trips. Both ranks call it, each with the other's
// pipeline rank as `with`. The side with `asks` gets the result; the other side answers with its clock.
ClockOffset compare_clocks(Comm& comm, int with, bool asks, const std::function<Clock::time_point()>& now) {
  constexpr int kExchanges = 8;
  ClockOffset best;
  const at::Tensor told_s = at::zeros({1}, at::kDouble);
  for (int i = 0; i < kExchanges; ++i) {
    if (!asks) {
      comm.recv(told_s, kOverPipeline, with).wait();
      told_s.fill_(seconds_of(now()));
      comm.send(told_s, kOverPipeline, with).wait();
      continue;
    }
    const double asked_s = seconds_of(now());
    comm.send(told_s, kOverPipeline, with).wait();
    comm.recv(told_s, kOverPipeline, with).wait();
    const double answered_s = seconds_of(now()), error_s = (answered_s - asked_s) / 2;
    if (error_s < best.error_s) best = {told_s.item<double>() - (asked_s + answered_s) / 2, error_s};
  }
  return best;
}

}  // namespace

MeasuredStep gather_timeline(Comm& comm, const Schedule& schedule, int64_t step, const std::vector<Interval>& intervals,
                             const std::function<Clock::time_point()>& now) {
  const int own = comm.position(kOverPipeline), ranks = comm.group_size(kOverPipeline);
  std::vector<int64_t> counts;
  int64_t all = 0;
  for (const auto& row : schedule.rows) counts.push_back(2 * static_cast<int64_t>(row.size())), all += counts.back();
  ORTHANT_CHECK(counts.at(static_cast<size_t>(own)) == 2 * static_cast<int64_t>(intervals.size()), own,
                intervals.size());
  const at::Tensor mine = at::empty({counts[static_cast<size_t>(own)]}, at::kDouble);
  const at::Tensor everyones = at::empty({all}, at::kDouble);
  double* time = mine.mutable_data_ptr<double>();
  for (const Interval& interval : intervals) *time++ = seconds_of(interval.start), *time++ = seconds_of(interval.end);

  std::vector<ClockOffset> clocks(static_cast<size_t>(ranks), {.ahead_s = 0, .error_s = 0});
  if (own > 0) compare_clocks(comm, 0, false, now);
  for (int other = 1; own == 0 && other < ranks; ++other) {
    clocks[static_cast<size_t>(other)] = compare_clocks(comm, other, true, now);
  }
  comm.all_gather(everyones, mine, kOverPipeline, counts).wait();

  MeasuredStep measured{.step = step, .schedule = schedule};
  std::vector<std::vector<std::pair<double, double>>> rows(schedule.rows.size());
  const double* each = everyones.const_data_ptr<double>();
  for (size_t rank = 0; rank < rows.size(); ++rank) {
    const auto [ahead_s, error_s] = clocks[rank];
    measured.clock_error_s = std::max(measured.clock_error_s, error_s);
    for (size_t i = 0; i < schedule.rows[rank].size(); ++i, each += 2)
      rows[rank].emplace_back(each[0] - ahead_s, each[1] - ahead_s);
  }
  measured.timeline = measured_timeline(schedule, rows);
  measured.simulated_s = simulate(schedule, own_durations(measured.timeline)).makespan;
  return measured;
}

}  // namespace orthant
