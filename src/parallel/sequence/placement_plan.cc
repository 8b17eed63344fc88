#include "parallel/sequence/placement_plan.h"

#include "base/errors.h"
#include "mesh/layout.h"

namespace orthant {

SequencePlacement sequence_placement_of(std::string_view name) {
  if (name == "contiguous") return SequencePlacement::contiguous;
  if (name == "stripe") return SequencePlacement::stripe;
  ORTHANT_CHECK(name == "zigzag", name);
  return SequencePlacement::zigzag;
}

int64_t pieces(SequencePlacement placement, int64_t ulysses, int64_t ring) {
  return ulysses * ring * (placement == SequencePlacement::zigzag && ring > 1 ? 2 : 1);
}

std::vector<int64_t> ring_positions(SequencePlacement placement, int64_t seq_len, int ring, int r) {
  ORTHANT_CHECK(seq_len > 0 && r >= 0 && r < ring, seq_len, r, ring);
  std::vector<int64_t> positions;
  const auto add = [&](const Range& part) {
    for (int64_t place = part.begin; place < part.end; ++place) positions.push_back(place);
  };
  switch (placement) {
    case SequencePlacement::contiguous: add(shard(seq_len, ring, r)); break;
    case SequencePlacement::zigzag:
      add(shard(seq_len, 2 * ring, r));
      add(shard(seq_len, 2 * ring, 2 * ring - 1 - r));
      break;
    case SequencePlacement::stripe:
      for (int64_t place = r; place < seq_len; place += ring) positions.push_back(place);
      break;
  }
  return positions;
}

std::vector<int64_t> held_positions(SequencePlacement placement, int64_t seq_len, int ulysses, int u, int ring, int r) {
  const std::vector<int64_t> block = ring_positions(placement, seq_len, ring, r);
  const Range part = shard(static_cast<int64_t>(block.size()), ulysses, u);
  return {block.begin() + part.begin, block.begin() + part.end};
}

int64_t num_ring_positions(SequencePlacement placement, int64_t seq_len, int ring, int r) {
  if (placement != SequencePlacement::zigzag) return shard(seq_len, ring, r).size();  // a stripe's length too
  return shard(seq_len, 2 * ring, r).size() + shard(seq_len, 2 * ring, 2 * ring - 1 - r).size();
}

int64_t num_held_positions(SequencePlacement placement, int64_t seq_len, int ulysses, int u, int ring, int r) {
  return shard(num_ring_positions(placement, seq_len, ring, r), ulysses, u).size();
}

}  // namespace orthant
