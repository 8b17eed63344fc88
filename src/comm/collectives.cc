// The algorithms of the collectives, on point-to-point messages between positions.
#include "comm/collectives.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "base/errors.h"
#include "comm/ordered_sum.h"
#include "mesh/layout.h"
#include "mesh/staging.h"

namespace orthant {
namespace {

// A message that is processed on arrival (summed or passed on) is cut into segments. The next segment travels while one
// is summed, and the summed one is still in the second-level cache. The size is a multiple of every element size.
constexpr int kWindow = 2;  // segments staged per rank: one is summed while the next travels
constexpr int64_t kSegmentBytes = kMaxPartialSumBytes / kWindow;
// Limit for two ranks: up to here, exchanging all data in one round beats two rounds, although both ranks sum
// everything.
constexpr int64_t kFullExchangeBytes = 16 << 10;
// Limit of an all-gather: up to here, one round of direct messages beats n - 1 rounds along the ring.
constexpr int64_t kDirectBytes = 256 << 10;

struct Chunk {
  int64_t begin = 0, bytes = 0;
  bool more = false;   // a segment, and not the last one
  bool always = true;  // sent even if empty, so that a mismatch of sizes is detected

  int64_t segments() const { return std::max<int64_t>(always, (bytes + kSegmentBytes - 1) / kSegmentBytes); }
  template <typename Byte>
  std::span<Byte> of(std::span<Byte> memory) const {
    return memory.subspan(static_cast<size_t>(begin), static_cast<size_t>(bytes));
  }
  Chunk segment(int64_t i) const {
    const int64_t offset = std::min(i * kSegmentBytes, bytes);
    return {begin + offset, std::min(bytes - offset, kSegmentBytes), bytes - offset > kSegmentBytes};
  }
};

std::vector<Chunk> chunks_of(const std::vector<int64_t>& counts) {
  std::vector<Chunk> chunks;
  int64_t begin = 0;
  for (const int64_t bytes : counts) {
    chunks.push_back({.begin = begin, .bytes = bytes});
    begin += bytes;
  }
  return chunks;
}

// Balanced chunks of a tensor of `bytes`, one for each position. If they are uneven, the larger ones belong to `first`
// and the positions after it.
std::vector<Chunk> even_chunks(const Peers& peers, int64_t bytes, int first = 0) {
  const int n = peers.size();
  std::vector<int64_t> counts(static_cast<size_t>(n));
  for (int i = 0; i < n; ++i) {
    counts[static_cast<size_t>((first + i) % n)] =
        shard(bytes / peers.element_bytes(), n, i).size() * peers.element_bytes();
  }
  return chunks_of(counts);
}

const Chunk& at(const std::vector<Chunk>& chunks, int position) { return chunks[static_cast<size_t>(position)]; }

void copy(Bytes to, ConstBytes from) {
  if (to.data() != from.data() && !from.empty()) std::memcpy(to.data(), from.data(), from.size());
}

// The segments of one chunk from all other positions, in staging memory. This position's own part stays in place.
class Summands {
 public:
  // extra_bytes: memory for the caller, after that of the segments.
  Summands(const Peers& peers, int64_t chunk_bytes, int64_t extra_bytes = 0)
      : peers_(peers), summand_bytes_(std::min(chunk_bytes, kMaxPartialSumBytes)) {
    const int64_t bytes = reduction_buffer_bytes(chunk_bytes, peers.size(), false);
    staging_ = peers.staging(bytes + extra_bytes);
    extra_ = {staging_ + bytes, static_cast<size_t>(extra_bytes)};
    arriving_.resize(kWindow);
  }

  Bytes extra() const { return extra_; }

  void receive(int64_t segment, Chunk chunk) {
    auto& arriving = arriving_[static_cast<size_t>(segment % kWindow)];
    for (int i = 1; i < peers_.size(); ++i) {
      const int from = peers_.at(i);
      const Bytes memory{slot(segment, from), static_cast<size_t>(chunk.bytes)};
      arriving.push_back(peers_.receive(from, memory, chunk.more));
    }
  }

  std::vector<Posted> take(int64_t segment) {
    return std::exchange(arriving_[static_cast<size_t>(segment % kWindow)], {});
  }

  // The last `maxima` elements of the segment are not added (ordered_sum.h).
  void sum(int64_t segment, ConstBytes own, Bytes output, int64_t maxima) {
    std::vector<const std::byte*> sources;
    for (int i = 0; i < peers_.size(); ++i) {
      sources.push_back(i == peers_.position() ? own.data() : slot(segment, i));
    }
    const int64_t count = static_cast<int64_t>(own.size()) / peers_.element_bytes();
    ordered_sum(output.data(), sources, count, peers_.type(), maxima);
  }

 private:
  std::byte* slot(int64_t segment, int from) {
    const int64_t other = from - (from > peers_.position());
    return staging_ + other * summand_bytes_ + segment % kWindow * kSegmentBytes;
  }

  const Peers& peers_;
  const int64_t summand_bytes_;  // bytes of staging memory per other rank
  std::byte* staging_;
  Bytes extra_;
  std::vector<std::vector<Posted>> arriving_;
};

// The ranks that receive the sums of all chunks, in the memory of their inputs.
struct Receivers {
  static constexpr int kNone = -1, kAll = -2;
  int root = kNone;  // a position, kNone or kAll

  bool include(int position) const { return root == kAll || root == position; }
};

// Sends each chunk to its owner, which sums it. The sums then go to the receivers. Both directions cut a chunk into the
// same segments, and all ranks post in the same order. In each direction, at most kWindow segments are in flight,
// because a transport may need a thread for each message.
//
// for step = 0, 1, ..., until all segments are summed and sent:
//   done = step - kWindow
//   own chunk, segment done:   await it from all n-1 ranks; sum in order of position
//   receivers:                 await the sums of segment done - kWindow; receive segment done of the other sums
//   to receivers:              send segment done of the own sum
//   own chunk, segment step:   post its receives from all n-1 ranks
//   others' chunks:            await the sends of segment done; send segment step to each owner
//
// The last `maxima` elements of the input are not added (ordered_sum.h).
Task sum_chunks(Peers peers, Bytes input, std::optional<Bytes> output, std::vector<Chunk> chunks, Receivers receivers,
                int64_t maxima = 0) {
  const int n = peers.size();
  const Chunk& own = at(chunks, peers.position());
  int64_t steps = 0;
  for (const Chunk& chunk : chunks) steps = std::max(steps, chunk.segments());
  const bool receives = receivers.include(peers.position());
  Summands summands(peers, own.bytes, output || receives ? 0 : own.bytes);
  const Bytes own_sum = output ? *output : receives ? own.of(input) : summands.extra();
  const auto of_own_sum = [&](const Chunk& segment) {
    return Chunk{segment.begin - own.begin, segment.bytes}.of(own_sum);
  };
  const int64_t first_maximum = static_cast<int64_t>(input.size()) - maxima * peers.element_bytes();
  const auto maxima_of = [&](const Chunk& segment) {
    return std::clamp<int64_t>(segment.begin + segment.bytes - first_maximum, 0, segment.bytes) / peers.element_bytes();
  };
  std::vector<std::vector<Posted>> sums(static_cast<size_t>(steps)), inputs(static_cast<size_t>(steps));
  for (int64_t step = 0; step < steps + kWindow; ++step) {
    const int64_t done = step - kWindow;
    if (done >= 0 && done < own.segments()) {
      std::vector<Posted> arriving = summands.take(done);
      for (Posted& posted : arriving) co_await posted;
      const Chunk segment = own.segment(done);
      summands.sum(done, segment.of(ConstBytes(input)), of_own_sum(segment), maxima_of(segment));
    }
    if (done >= kWindow) {
      for (Posted& posted : sums[static_cast<size_t>(done - kWindow)]) co_await posted;
    }
    for (int i = 1; done >= 0 && i < n; ++i) {
      auto& under_way = sums[static_cast<size_t>(done)];
      if (const Chunk& chunk = at(chunks, peers.at(-i)); receives && done < chunk.segments()) {
        const Chunk arriving = chunk.segment(done);
        under_way.push_back(peers.receive(peers.at(-i), arriving.of(input), arriving.more));
      }
      if (receivers.include(peers.at(i)) && done < own.segments()) {
        const Chunk leaving = own.segment(done);
        under_way.push_back(peers.send(peers.at(i), of_own_sum(leaving), leaving.more));
      }
    }
    if (step >= steps) continue;
    if (step < own.segments()) summands.receive(step, own.segment(step));
    if (done >= 0) {
      for (Posted& posted : inputs[static_cast<size_t>(done)]) co_await posted;
    }
    for (int i = 1; i < n; ++i) {
      if (const Chunk& chunk = at(chunks, peers.at(i)); step < chunk.segments()) {
        const Chunk leaving = chunk.segment(step);
        inputs[static_cast<size_t>(step)].push_back(peers.send(peers.at(i), leaving.of(input), leaving.more));
      }
    }
  }
  for (auto* kind : {&inputs, &sums}) {
    for (auto& under_way : *kind) {
      for (Posted& posted : under_way) co_await posted;
    }
  }
}

// Both ranks send everything to each other and sum it: one round.
Task sum_full_exchange(Peers peers, Bytes memory, int64_t maxima) {
  Summands summands(peers, static_cast<int64_t>(memory.size()));
  summands.receive(0, {.bytes = static_cast<int64_t>(memory.size())});
  Posted sent = peers.send(peers.at(1), memory);
  std::vector<Posted> arriving = summands.take(0);
  for (Posted& posted : arriving) co_await posted;
  co_await sent;
  summands.sum(0, memory, memory, maxima);
}

Task gather_direct(Peers peers, Bytes output, std::vector<Chunk> shards) {
  std::vector<Posted> under_way;
  for (int i = 1; i < peers.size(); ++i) {
    under_way.push_back(peers.receive(peers.at(-i), at(shards, peers.at(-i)).of(output)));
  }
  for (int i = 1; i < peers.size(); ++i) {
    under_way.push_back(peers.send(peers.at(i), at(shards, peers.position()).of(output)));
  }
  for (Posted& posted : under_way) co_await posted;
}

Task gather_ring(Peers peers, Bytes output, std::vector<Chunk> shards) {
  for (int step = 0; step < peers.size() - 1; ++step) {
    Posted received = peers.receive(peers.at(-1), at(shards, peers.at(-step - 1)).of(output));
    Posted sent = peers.send(peers.at(1), at(shards, peers.at(-step)).of(output));
    co_await received;
    co_await sent;
  }
}

}  // namespace

Task all_reduce(Peers peers, Bytes memory, int64_t maxima) {
  const auto bytes = static_cast<int64_t>(memory.size());
  if (peers.size() == 2 && bytes <= kFullExchangeBytes) return sum_full_exchange(peers.in_one_round(), memory, maxima);
  return sum_chunks(peers, memory, std::nullopt, even_chunks(peers, bytes), {Receivers::kAll}, maxima);
}

Task reduce_scatter(Peers peers, Bytes output, ConstBytes input, std::vector<int64_t> counts) {
  const Bytes unchanged{const_cast<std::byte*>(input.data()), input.size()};  // no sum is received there
  return sum_chunks(peers, unchanged, output, chunks_of(counts), {Receivers::kNone});
}

Task all_gather(Peers peers, Bytes output, ConstBytes input, std::vector<int64_t> counts) {
  const auto shards = chunks_of(counts);
  copy(at(shards, peers.position()).of(output), input);
  const bool equal = std::all_of(counts.begin(), counts.end(), [&](int64_t count) { return count == counts[0]; });
  if (equal && static_cast<int64_t>(output.size()) <= kDirectBytes) {
    return gather_direct(peers.in_one_round(), output, shards);
  }
  return gather_ring(peers, output, shards);
}

Task all_to_all(Peers peers, Bytes output, ConstBytes input, std::vector<int64_t> output_counts,
                std::vector<int64_t> input_counts) {
  const auto to = chunks_of(output_counts), from = chunks_of(input_counts);
  std::vector<Posted> under_way;
  for (int i = 1; i < peers.size(); ++i) {
    under_way.push_back(peers.receive(peers.at(-i), at(to, peers.at(-i)).of(output)));
  }
  for (int i = 1; i < peers.size(); ++i) {
    under_way.push_back(peers.send(peers.at(i), at(from, peers.at(i)).of(input)));
  }
  copy(at(to, peers.position()).of(output), at(from, peers.position()).of(input));
  for (Posted& posted : under_way) co_await posted;
}

Task broadcast(Peers peers, Bytes memory, int root) {
  const int n = peers.size(), chain_position = (peers.position() - root + n) % n;
  const Chunk full{.bytes = static_cast<int64_t>(memory.size())};
  std::vector<Posted> arriving, leaving;
  for (int64_t i = 0; chain_position > 0 && i < full.segments(); ++i) {
    arriving.push_back(peers.receive(peers.at(-1), full.segment(i).of(memory), full.segment(i).more));
  }
  for (int64_t i = 0; i < full.segments(); ++i) {
    if (chain_position > 0) {
      Posted& segment = arriving[static_cast<size_t>(i)];
      co_await segment;
    }
    if (chain_position == n - 1) continue;
    if (i >= kWindow) {
      Posted& oldest = leaving[static_cast<size_t>(i - kWindow)];
      co_await oldest;
    }
    leaving.push_back(peers.send(peers.at(1), full.segment(i).of(memory), full.segment(i).more));
  }
  for (Posted& posted : leaving) co_await posted;
}

Task reduce(Peers peers, Bytes memory, int root) {
  // A reduce is a reduce_scatter in which one position owns everything.
  std::vector<Chunk> chunks(static_cast<size_t>(peers.size()), {.always = false});
  chunks[static_cast<size_t>(root)] = {.bytes = static_cast<int64_t>(memory.size())};
  return sum_chunks(peers, memory, std::nullopt, chunks, {root});
}

Task reduce_in_chunks(Peers peers, Bytes memory, int root) {
  if (peers.size() == 2) return reduce(peers, memory, root);
  const auto bytes = static_cast<int64_t>(memory.size());
  return sum_chunks(peers, memory, std::nullopt, even_chunks(peers, bytes, root), {root});
}

Task barrier(Peers peers) {
  for (int distance = 1; distance < peers.size(); distance *= 2) {
    Posted received = peers.receive(peers.at(-distance), {});
    Posted sent = peers.send(peers.at(distance), {});
    co_await received;
    co_await sent;
  }
}

}  // namespace orthant
