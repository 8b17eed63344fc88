#include "model/visibility.h"

#include <algorithm>

#include "base/errors.h"

namespace orthant {
namespace {

// Shorter runs of rows join a masked tile, because a kernel call for each would cost more.
constexpr int64_t kShortRun = 32;

struct Interval {
  int64_t first = 0, end = 0;
  bool empty() const { return end <= first; }
};

// The interval of key indices that each query of a sequence sees.
std::vector<Interval> seen_by(const Visibility& visibility, int64_t sequence, std::span<const int64_t> keys) {
  std::vector<Interval> seen;
  const auto index = [&](int64_t place) { return std::lower_bound(keys.begin(), keys.end(), place) - keys.begin(); };
  for (int64_t query = 0; query < visibility.queries; ++query) {
    const auto i = static_cast<size_t>(sequence * visibility.queries + query);
    seen.push_back({index(visibility.first[i]), index(visibility.end[i])});
  }
  return seen;
}

// Number of rows from `row` on with the same interval (step 0), or with one more key at the end of each (step 1).
int64_t run_length(std::span<const Interval> seen, size_t row, int64_t step) {
  size_t next = row + 1;
  while (next < seen.size() && seen[next].first == seen[row].first && seen[next].end == seen[next - 1].end + step)
    ++next;
  return static_cast<int64_t>(next - row);
}

AttentionTile::Kind kind_of_run(std::span<const Interval> seen, size_t row, int64_t& length) {
  const int64_t equal = run_length(seen, row, 0);
  // A triangular run starts with a query that sees one key.
  const int64_t triangle = seen[row].end - seen[row].first == 1 ? run_length(seen, row, 1) : 0;
  length = std::max(equal, triangle);
  return triangle > equal ? AttentionTile::causal : AttentionTile::full;
}

}  // namespace

Visibility compute_visibility(const VisibilityRule& rule, std::span<const int64_t> positions, int64_t sequence_length,
                              std::span<const std::vector<int64_t>> document_starts, std::span<const int64_t> lengths) {
  Visibility v;
  v.queries = static_cast<int64_t>(positions.size());
  ORTHANT_CHECK(document_starts.empty() || lengths.empty() || document_starts.size() == lengths.size());
  v.sequences = static_cast<int64_t>(std::max<size_t>({1, document_starts.size(), lengths.size()}));
  for (size_t s = 0; s < static_cast<size_t>(v.sequences); ++s) {
    const int64_t length = lengths.empty() ? sequence_length : lengths[s];
    for (const int64_t place : positions) {
      Interval seen{0, length};
      if (!document_starts.empty()) {
        const auto& starts = document_starts[s];
        const auto next = std::upper_bound(starts.begin(), starts.end(), place);
        if (next != starts.begin()) seen.first = *(next - 1);
        if (next != starts.end()) seen.end = std::min(seen.end, *next);
      }
      if (rule.causal) seen.end = std::min(seen.end, place + 1);
      if (rule.sliding_window > 0) {
        // A larger window sees no more. The limit keeps the sums below from overflowing, because a config may set any
        // window.
        const int64_t window = std::min(rule.sliding_window, sequence_length);
        seen.first = std::max(seen.first, place - window + 1);
        seen.end = std::min(seen.end, place + window);
      }
      if (place >= length || seen.empty()) seen = {};
      v.first.push_back(seen.first);
      v.end.push_back(seen.end);
    }
  }
  return v;
}

int64_t AttentionTile::scores() const {
  if (kind == full) return queries() * keys();
  if (kind == causal) return keys() * (keys() + 1) / 2;
  int64_t sum = 0;
  for (size_t i = 0; i < visible_begin.size(); ++i) sum += visible_end[i] - visible_begin[i];
  return sum;
}

std::vector<AttentionTile> attention_tiles(const Visibility& visibility, std::span<const int64_t> key_positions,
                                           int64_t most_masked) {
  std::vector<AttentionTile> tiles;
  for (int64_t sequence = 0; sequence < visibility.sequences; ++sequence) {
    const std::vector<Interval> seen = seen_by(visibility, sequence, key_positions);
    const auto rows = static_cast<int64_t>(seen.size());
    for (int64_t row = 0; row < rows;) {
      if (seen[static_cast<size_t>(row)].empty()) {
        ++row;
        continue;
      }
      AttentionTile tile{.sequence = visibility.sequences == 1 ? -1 : sequence, .query_begin = row};
      int64_t length = 0;
      tile.kind = kind_of_run(seen, static_cast<size_t>(row), length);
      if (length < std::min(kShortRun, rows)) {
        // A masked tile extends to the start of the next long run.
        tile.kind = AttentionTile::masked;
        int64_t end = row + length, next_length = 0;
        while (end < rows && end - row < most_masked && !seen[static_cast<size_t>(end)].empty()) {
          kind_of_run(seen, static_cast<size_t>(end), next_length);
          if (next_length >= kShortRun) break;
          end += next_length;
        }
        length = std::min(end - row, most_masked);
      }
      tile.query_end = row + length;
      tile.key_begin = seen[static_cast<size_t>(row)].first;
      for (int64_t i = row; i < tile.query_end; ++i) {
        tile.key_begin = std::min(tile.key_begin, seen[static_cast<size_t>(i)].first);
        tile.key_end = std::max(tile.key_end, seen[static_cast<size_t>(i)].end);
      }
      for (int64_t i = row; tile.kind == AttentionTile::masked && i < tile.query_end; ++i) {
        tile.visible_begin.push_back(seen[static_cast<size_t>(i)].first - tile.key_begin);
        tile.visible_end.push_back(seen[static_cast<size_t>(i)].end - tile.key_begin);
      }
      row = tile.query_end;
      tiles.push_back(std::move(tile));
    }
  }
  return tiles;
}

}  // namespace orthant
