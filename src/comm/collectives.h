// Collectives over any Transport, each written as a Task that sends messages between the positions of a group.
//
// Sums are taken in order of position for every size (ordered_sum.h). Each chunk is therefore summed by its owner, to
// which all other ranks send their part. That moves the same bytes as a ring, in one round instead of n - 1. Memory is
// raw and counts are in bytes.
//
// Growth per rank over n ranks, in messages (sums and broadcasts cut each into segments of 512 KiB):
// all_reduce      2 (n-1), in 2 rounds; 1 for n = 2 and at most 16 KiB
// all_reduce_by_tree  at most 2 log2 n, to as many neighbors; n / 64 + log2 n of them one after another
// reduce_scatter  n-1, in 1 round          all_to_all  n-1, in 1 round
// all_gather      n-1, in 1 round up to 256 KiB of equal shards, otherwise in n-1 rounds
// broadcast       1 in and 1 out, after up to n-1 hops      reduce  1; the root receives n-1
// reduce_in_chunks  n, in 2 rounds; the root sends n-1 and receives 2 (n-1). For n = 2 it is a reduce
// barrier         ceil(log2 n), in as many rounds
// All others except broadcast and rings have n - 1 neighbors, so they are for groups over a few mesh axes. What all
// ranks of a run do together in every step is a sum by tree or a barrier. A rank that sums a chunk of c bytes needs
// (n-1) min(c, 1 MiB) bytes of staging memory (mesh/staging.h).
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "comm/peers.h"
#include "comm/task.h"

namespace orthant {

using Bytes = std::span<std::byte>;
using ConstBytes = std::span<const std::byte>;

/// Sums over the group, in place. Sends about 2 (n-1)/n of the bytes: chunks to their owners, then sums to all ranks.
/// Example: 6 elements over 3 ranks; rank 1 owns elements 2 and 3. In round 1 it sends elements 0-1 to rank 0 and 4-5
/// to rank 2, and receives 2-3 from both. It sums (rank 0 + rank 1) + rank 2. In round 2 it sends its sums of 2-3 to
/// both ranks and receives theirs. It has sent 4 + 4 = 8 elements = 2 (2/3) 6.
/// The last `maxima` elements are not added: their result is the largest of the group (ordered_sum.h).
Task all_reduce(Peers peers, Bytes memory, int64_t maxima = 0);
/// The same sum, with the same bits, for few elements over many ranks (mesh/sum_tree.h). The dtype must be the one in
/// which its sums are formed: not float16 or bfloat16.
Task all_reduce_by_tree(Peers peers, Bytes memory, int64_t maxima = 0);
/// `counts`: bytes of each position's chunk of `input`. Sends the input except this position's own chunk.
Task reduce_scatter(Peers peers, Bytes output, ConstBytes input, std::vector<int64_t> counts);
/// `counts`: bytes of each position's shard of `output`. Sends the output except the next position's shard. Equal
/// shards of at most 256 KiB in total go directly to every rank, in one round. Others pass along the ring, in n - 1
/// rounds.
Task all_gather(Peers peers, Bytes output, ConstBytes input, std::vector<int64_t> counts);
/// Chunk i of `input` goes to position i; chunk i of `output` comes from it. Counts are bytes per position.
Task all_to_all(Peers peers, Bytes output, ConstBytes input, std::vector<int64_t> output_counts,
                std::vector<int64_t> input_counts);
/// Passes the root's memory along a chain, in segments. Every rank except the last sends the bytes once.
Task broadcast(Peers peers, Bytes memory, int root);
/// Sums over the group into the root's memory. Every other rank sends its bytes to the root, in segments.
Task reduce(Peers peers, Bytes memory, int root);
/// The same sum with fewer bytes into the root: chunks go to their owners, and the sums of chunks to the root. It
/// receives 2 (n-1)/n of the tensor's bytes, where a reduce receives n-1 tensors, but it also sends (n-1)/n of them.
Task reduce_in_chunks(Peers peers, Bytes memory, int root);
/// Returns on a rank only after all ranks have called it, in ceil(log2 n) rounds (dissemination barrier).
Task barrier(Peers peers);

}  // namespace orthant
