// Our collectives, once for every Transport: each a Task on messages between the positions of a group. Sums are in
// order of position whatever the size (ordered_sum.h), so a chunk is summed by its owner, to whom all others send it:
// as many bytes as a ring sends, in one round instead of n - 1. Memory is raw and counts are bytes.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "comm/peers.h"
#include "comm/task.h"

namespace orthant {

using Bytes = std::span<std::byte>;
using ConstBytes = std::span<const std::byte>;

/// Sends 2 (n-1)/n of the bytes: chunks to their owners, and their sums to all.
Task all_reduce(Peers peers, Bytes memory);
/// `counts`: bytes of each position's chunk of `input`. Sends the input but for the own chunk.
Task reduce_scatter(Peers peers, Bytes output, ConstBytes input, std::vector<int64_t> counts);
/// Small equal shards go from each to each, in one round; others round the ring, in n - 1. Sends the output but for the
/// next position's shard.
Task all_gather(Peers peers, Bytes output, ConstBytes input, std::vector<int64_t> counts);
/// Sends what leaves.
Task all_to_all(Peers peers, Bytes output, ConstBytes input, std::vector<int64_t> output_counts,
                std::vector<int64_t> input_counts);
/// A chain from the root, in segments: all but the last send the bytes once.
Task broadcast(Peers peers, Bytes memory, int root);
/// All send to the root, in segments.
Task reduce(Peers peers, Bytes memory, int root);
/// Each hears of all others in log2(n) rounds.
Task barrier(Peers peers);

}  // namespace orthant
