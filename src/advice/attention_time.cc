// Estimates times from bytes, bandwidths and FLOPs. All ranks are assumed to send at the same time.
#include "advice/attention_time.h"

#include <algorithm>
#include <array>
#include <limits>

#include "parallel/sequence/ring_plan.h"
#include "parallel/sequence/scores_plan.h"
#include "parallel/sequence/ulysses/heads_plan.h"

namespace orthant {
namespace {

struct Message {
  int to = 0;
  double bytes = 0;
};

// Returns the seconds until every rank has sent its messages, if all ranks start at the same time. The ranks of a host
// share its link to other hosts; within the host each rank has a link of its own.
template <class MessagesOf>
double transfer_seconds(int ranks, const Links& links, MessagesOf messages_of) {
  const int per_host = links.ranks_per_host > 0 ? links.ranks_per_host : ranks;
  double longest = 0;
  for (int host = 0; host * per_host < ranks; ++host) {
    double outer = 0, inner = 0;
    for (int rank = host * per_host; rank < std::min(ranks, (host + 1) * per_host); ++rank) {
      double within = 0;
      for (const Message& m : messages_of(rank)) (m.to / per_host == host ? within : outer) += m.bytes;
      inner = std::max(inner, within);
    }
    longest = std::max({longest, inner / links.inner_bytes_per_s, outer / links.outer_bytes_per_s});
  }
  return longest;
}

// Returns the seconds of the double ring. For every window, a rank sends window - 1 blocks to its neighbor inside the
// window. Between two windows it sends one block to its neighbor in the next window. That makes ring - 1 blocks.
double ring_seconds(const Mesh& mesh, const LayerChoice& choice, const Links& links) {
  const int ring = choice.sequence.ring;
  if (ring == 1) return 0;
  const int window = choice.sequence.window > 0 ? choice.sequence.window : ring, windows = ring / window;
  const double block = static_cast<double>(choice.ring_bytes) / (ring - 1);
  return transfer_seconds(mesh.size(), links, [&](int rank) {
    const DoubleRing rings = double_ring(ring, mesh.coord(rank, kRing), window);
    const auto next = [&](const Ring& of) { return of.members[static_cast<size_t>(of.source(-1))]; };
    return std::array{Message{mesh.rank_at(rank, kRing, next(rings.inner)), block * windows * (window - 1)},
                      Message{mesh.rank_at(rank, kRing, next(rings.outer)), block * (windows - 1)}};
  });
}

double all_to_all_seconds(const Mesh& mesh, const LayerChoice& choice, const Links& links) {
  const int ulysses = choice.sequence.ulysses;
  if (ulysses == 1) return 0;
  const double to_each = static_cast<double>(choice.ulysses_bytes) / (ulysses - 1);
  return transfer_seconds(mesh.size(), links, [&](int rank) {
    std::vector<Message> messages;
    for (const int peer : mesh.group(rank, {kUlysses})) {
      if (peer != rank) messages.push_back({peer, to_each});
    }
    return messages;
  });
}

// Returns the FLOPs of the busiest rank's attention, from its query-key pairs, heads and sequences. Per score, forward
// takes 2 products over head_dim, recomputation of the forward 2 more, and backward 4.
double operations(const Plan& plan, const LayerChoice& choice) {
  const auto& a = plan.architecture;
  const auto& t = plan.config.training;
  const SequencePlan& cut = choice.sequence;
  int64_t scores = 0;
  for (int r = 0; r < cut.ring; ++r) {
    scores = std::max(scores, num_visible_pairs(cut.placement, t.seq_len, cut.ring, r, a.causal(), a.sliding_window));
  }
  const int64_t heads = head_shard(a.num_attention_heads, a.num_key_value_heads, cut.ulysses, 0).query.size();
  const int64_t sequences = make_data_shard(t.global_batch_size, t.local_batch_size, choice.data, 0).sequences.size();
  const double products = make_recomputation(plan.config).repeats_attention(block_operations(a)) ? 8 : 6;
  return 2 * products * static_cast<double>(scores) * static_cast<double>(sequences * heads * a.head_dim);
}

}  // namespace

double attention_seconds(const Plan& plan, const LayerChoice& choice, const Links& links) {
  if (!choice.shards_batch_or_sequences()) return std::numeric_limits<double>::infinity();
  const Mesh mesh({{kUlysses, choice.sequence.ulysses}, {kRing, choice.sequence.ring}, {kData, choice.data}});
  const double computing = links.flops_per_s > 0 ? operations(plan, choice) / links.flops_per_s : 0.0;
  return all_to_all_seconds(mesh, choice, links) + std::max(ring_seconds(mesh, choice, links), computing);
}

}  // namespace orthant
