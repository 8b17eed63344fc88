#include "plan/attention_time.h"

#include <algorithm>
#include <limits>

namespace orthant {
namespace {

// Seconds until every rank has sent so many bytes to each of its `peers`.
template <class Peers>
double transfer_seconds(int ranks, double bytes_to_each, const Links& links, Peers peers) {
  const int per_host = links.ranks_per_host > 0 ? links.ranks_per_host : ranks;
  double longest = 0;
  for (int host = 0; host * per_host < ranks; ++host) {
    double outer = 0, inner = 0;
    for (int rank = host * per_host; rank < std::min(ranks, (host + 1) * per_host); ++rank) {
      double within = 0;
      for (const int peer : peers(rank)) (peer / per_host == host ? within : outer) += bytes_to_each;
      inner = std::max(inner, within);
    }
    longest = std::max({longest, inner / links.inner_bytes_per_s, outer / links.outer_bytes_per_s});
  }
  return longest;
}

}  // namespace

double attention_seconds(const Plan& plan, const LayerChoice& choice, const Links& links) {
  if (!choice.cuts_tokens()) return std::numeric_limits<double>::infinity();
  const int U = choice.sequence.ulysses, R = choice.sequence.ring, ranks = U * R * choice.data;
  const Mesh mesh({{"ulysses", U}, {"ring", R}, {"data", choice.data}});
  const double all_to_all =
      U == 1 ? 0 : transfer_seconds(ranks, static_cast<double>(choice.ulysses_bytes) / (U - 1), links, [&](int rank) {
        std::vector<int> peers = mesh.group(rank, {"ulysses"});
        std::erase(peers, rank);
        return peers;
      });
  const double ring =
      R == 1 ? 0 : transfer_seconds(ranks, static_cast<double>(choice.ring_bytes), links, [&](int rank) {
        return std::vector{mesh.rank_at(rank, "ring", (mesh.coord(rank, "ring") + 1) % R)};
      });
  const auto& t = plan.config.training;
  const double tokens = static_cast<double>(t.global_batch_size * t.seq_len) / ranks;
  const double operations = tokens * attention_flops_per_token(plan.architecture, t.seq_len);
  return all_to_all + std::max(ring, links.flops_per_s > 0 ? operations / links.flops_per_s : 0.0);
}

}  // namespace orthant
