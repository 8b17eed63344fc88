// Counts, CSV files and text drawings of schedules, and the passes that need nothing else.
#include "schedule/schedule.h"

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "base/errors.h"
#include "base/text.h"
#include "schedule/simulate.h"
#include "schedule/validate.h"

namespace orthant {
namespace {

/// Parses one cell and appends its Actions to the row.
void read_cell(std::string_view cell, std::vector<Action>& row) {
  constexpr std::string_view kPair = ")OVERLAP_F_B";
  if (!cell.starts_with('(')) {
    row.push_back(parse_action(cell));
    return;
  }
  if (!cell.ends_with(kPair)) throw DataError(fmt::format("it begins with ( but does not end with {}", kPair));
  cell.remove_prefix(1);
  cell.remove_suffix(kPair.size());
  for (const std::string& part : split(cell, ';')) row.push_back(parse_action(trim(part)));
}

std::string padded(std::string text, size_t width) {
  text.resize(std::max(text.size(), width), ' ');
  return text;
}

/// A text table with aligned cells and the rank at the beginning of each line.
std::string table(const std::vector<std::vector<std::string>>& lines) {
  size_t width = 1;
  for (const auto& line : lines)
    for (const std::string& cell : line) width = std::max(width, cell.size());
  const size_t digits = std::to_string(std::max<size_t>(lines.size(), 1) - 1).size();
  std::string out;
  for (size_t rank = 0; rank < lines.size(); ++rank) {
    std::string line = fmt::format("rank {:>{}} |", rank, digits);
    for (const std::string& cell : lines[rank]) line += " " + padded(cell, width);
    out += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return out;
}

}  // namespace

int stage_count(const Schedule& schedule) {
  int count = static_cast<int>(schedule.stage_owner.size());
  for (const auto& row : schedule.rows)
    for (const Action& action : row) count = std::max(count, action.stage + 1);
  return count;
}

int microbatch_count(const Schedule& schedule) {
  int count = 0;
  for (const auto& row : schedule.rows)
    for (const Action& action : row) count = std::max(count, microbatch_of(action) + 1);
  return count;
}

std::pair<int, int> first_position(const Schedule& schedule, const std::function<bool(const Action&)>& is) {
  for (size_t rank = 0; rank < schedule.rows.size(); ++rank) {
    const auto& row = schedule.rows[rank];
    const auto found = std::find_if(row.begin(), row.end(), is);
    if (found != row.end()) return {static_cast<int>(rank), static_cast<int>(found - row.begin())};
  }
  return {-1, -1};
}

Schedule add_reductions(Schedule schedule, const std::vector<int>& buckets) {
  ORTHANT_CHECK(buckets.size() == schedule.stage_owner.size(), buckets.size(), schedule.stage_owner.size());
  for (size_t stage = buckets.size(); stage-- > 0;) {
    auto& row = schedule.rows[static_cast<size_t>(schedule.stage_owner[stage])];
    for (int bucket = buckets[stage]; bucket-- > 0;) {
      row.push_back({ActionKind::REDUCE, static_cast<int>(stage), bucket});
    }
  }
  return schedule;
}

bool writes_gradients(const Schedule& schedule, const Action& action) {
  if (action.kind == ActionKind::F) return action.stage + 1 == static_cast<int>(schedule.stage_owner.size());
  const bool sends = is_message(action) || is_step_action(action);
  return !sends && action.kind != ActionKind::UNSHARD && action.kind != ActionKind::RESHARD;
}

std::vector<Action> select_forwards(const std::vector<Action>& row) {
  std::vector<Action> forwards;
  std::copy_if(row.begin(), row.end(), std::back_inserter(forwards), [](const Action& action) {
    using enum ActionKind;
    const auto kind = action.kind;
    return kind == F || kind == SEND_F || kind == RECV_F || kind == E || kind == S || kind == Z;
  });
  return forwards;
}

std::string to_pytorch_csv(const Schedule& schedule) {
  Schedule computations = schedule;
  for (auto& row : computations.rows) std::erase_if(row, [](const Action& action) { return !is_computation(action); });
  return to_csv(computations);
}

std::string to_csv(const Schedule& schedule) {
  std::string out;
  for (const auto& row : schedule.rows) {
    std::vector<std::string> cells;
    for (const Action& action : row) cells.push_back(to_string(action));
    out += join(cells, ",") + "\n";
  }
  return out;
}

Schedule parse_csv(std::string_view text, std::vector<std::vector<int>>* cells_of) {
  Schedule schedule;
  std::vector<std::vector<int>> positions;
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  std::vector<std::string> lines = split(text, '\n');
  if (!lines.empty() && trim(lines.back()).empty()) lines.pop_back();
  for (size_t line = 0; line < lines.size(); ++line) {
    std::vector<Action>& row = schedule.rows.emplace_back();
    std::vector<int>& row_positions = positions.emplace_back();
    const std::vector<std::string> cells = split(lines[line], ',');
    for (size_t cell = 0; cell < cells.size(); ++cell) {
      const std::string_view entry = trim(cells[cell]);
      if (entry.empty()) continue;
      try {
        read_cell(entry, row);
      } catch (const DataError& error) {
        throw DataError(fmt::format("schedule line {}, cell {}: {}", line + 1, cell + 1, error.what()));
      }
      row_positions.resize(row.size(), static_cast<int>(cell) + 1);
    }
  }
  // Tables have an entry for each stage and microbatch. A complete schedule has Actions for each; a damaged number must
  // not make tables that are much larger than the file.
  constexpr int64_t kFew = 1 << 14;
  int64_t actions = 0;
  for (const auto& row : schedule.rows) actions += std::ssize(row);
  const int64_t most = std::min(kMostStageMicrobatches, std::max(kFew, actions));
  const int64_t stages = stage_count(schedule), microbatches = microbatch_count(schedule);
  if (stages > most / std::max<int64_t>(microbatches, 1)) {
    const auto [rank, index] = first_position(schedule, [&](const Action& action) {
      return stages >= microbatches ? action.stage + 1 == stages : microbatch_of(action) + 1 == microbatches;
    });
    throw DataError(fmt::format(
        "schedule line {}, cell {}: stages x microbatches = {} x {} must be at most {}{}", rank + 1,
        positions[static_cast<size_t>(rank)][static_cast<size_t>(index)], stages, microbatches, most,
        most == kMostStageMicrobatches
            ? ""
            : fmt::format(" in a file of {}, because each stage computes each microbatch; correct this number, or add "
                          "the missing Actions",
                          counted(actions, "Action"))));
  }
  schedule.stage_owner.assign(static_cast<size_t>(stages), -1);
  for (size_t rank = 0; rank < schedule.rows.size(); ++rank)
    for (const Action& action : schedule.rows[rank]) {
      int& owner = schedule.stage_owner[static_cast<size_t>(action.stage)];
      if (owner < 0) owner = static_cast<int>(rank);
    }
  if (cells_of != nullptr) *cells_of = std::move(positions);
  return schedule;
}

std::string grid(const Schedule& schedule) {
  std::vector<std::vector<std::string>> lines(schedule.rows.size());
  Durations unit;
  for (const KindFacts& each : action_kinds())
    unit.times[static_cast<size_t>(each.kind)] = each.stream == Stream::compute && !is_step_action({each.kind}) ? 1 : 0;
  try {
    for (const Span& span : simulate(schedule, unit).spans) {
      if (span.stream != Stream::compute || is_step_action(span.action)) continue;
      auto& line = lines[static_cast<size_t>(span.rank)];
      line.resize(static_cast<size_t>(span.end), ".");
      line.back() = to_string(span.action);
    }
  } catch (const LogicError&) {
    for (size_t rank = 0; rank < schedule.rows.size(); ++rank) {
      lines[rank].clear();
      for (const Action& action : schedule.rows[rank]) lines[rank].push_back(to_string(action));
    }
  }
  return table(lines);
}

}  // namespace orthant
