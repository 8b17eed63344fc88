#include "parallel/sequence/plan.h"

#include "base/errors.h"
#include "mesh/layout.h"
#include "parallel/sequence/ulysses/heads_plan.h"

#include <algorithm>

namespace orthant {
namespace {

int64_t size_of(const std::vector<int64_t>& places) { return static_cast<int64_t>(places.size()); }

// The ranks' shares of one microbatch, in elements of q a token of a head.
struct Cut {
  Cut(const SequencePlan& plan_in, const SequenceAttention& attention_in, int u, int r_in)
      : plan(plan_in), a(attention_in), r(r_in), row(attention_in.sequences * attention_in.head_dim) {
    for (int ring = 0; ring < plan.ring; ++ring) blocks.push_back(size_of(ring_places(plan.placement, a.seq_len, plan.ring, ring)));
    for (int v = 0; v < plan.ulysses; ++v) {
      shares.push_back(head_share(a.heads, a.key_heads, plan.ulysses, v));
      tokens.push_back(size_of(held_places(plan.placement, a.seq_len, plan.ulysses, v, plan.ring, r)));
    }
    own = shares[static_cast<size_t>(u)];
    own_tokens = tokens[static_cast<size_t>(u)];
    ring_key_heads = own.regular(a.heads, a.key_heads) ? own.key.size() : own.query.size();
  }
  int64_t block(int member) const { return blocks[static_cast<size_t>((member % plan.ring + plan.ring) % plan.ring)]; }
  int64_t own_block() const { return block(r); }

  const SequencePlan& plan;
  const SequenceAttention& a;
  int r;
  int64_t row;
  std::vector<int64_t> blocks, tokens;  // of the ring's members; of the Ulysses group's
  std::vector<HeadShare> shares;
  HeadShare own;
  int64_t own_tokens = 0, ring_key_heads = 0;
};

// Elements that leave this rank when tokens become heads, and the other way round, of so many tensors with query heads and
// with key heads.
int64_t to_heads(const Cut& cut, int64_t queries, int64_t keys) {
  int64_t heads = -queries * cut.own.query.size() - keys * cut.own.key.size();
  for (const HeadShare& share : cut.shares) heads += queries * share.query.size() + keys * share.key.size();
  return heads * cut.own_tokens * cut.row;
}
int64_t to_tokens(const Cut& cut, int64_t queries, int64_t keys) {
  return (queries * cut.own.query.size() + keys * cut.own.key.size()) * (cut.own_block() - cut.own_tokens) * cut.row;
}

// Tokens of the blocks that this rank passes on, and in how many messages; sums follow one step behind their blocks.
struct Passed {
  int64_t blocks = 0, sums = 0, messages = 0;
};
Passed passed_on(const Cut& cut) {
  const int window = cut.plan.window > 0 ? cut.plan.window : cut.plan.ring, windows = cut.plan.ring / window;
  Passed passed;
  const int w = cut.r / window, i = cut.r % window;
  const auto block = [&](int step_w, int step_i) {
    return cut.block(((w - step_w) % windows + windows) % windows * window + ((i - step_i) % window + window) % window);
  };
  for (int o = 0; o < windows; ++o) {
    for (int s = 0; s < window - 1; ++s, ++passed.messages) passed.blocks += block(o, s), passed.sums += block(o, s + 1);
    if (o < windows - 1) passed.blocks += block(o, 0), passed.sums += block(o + 1, 0), ++passed.messages;
  }
  return passed;
}

}  // namespace

SequenceTraffic sequence_traffic(const SequencePlan& plan, const SequenceAttention& a, int u, int r) {
  const Cut cut(plan, a, u, r);
  SequenceTraffic traffic;
  const int64_t e = a.element_bytes;
  if (plan.ulysses > 1) {
    traffic.forward.push_back({"attention, heads", "all_to_all", "ulysses", 2, (to_heads(cut, 1, 2) + to_tokens(cut, 1, 0)) * e});
    traffic.backward.push_back({"attention, heads", "all_to_all", "ulysses", 2, (to_heads(cut, 1, 0) + to_tokens(cut, 1, 2)) * e});
  }
  if (plan.ring == 1) return traffic;
  if (plan.linformer > 0) {
    const int64_t sums = 2 * cut.ring_key_heads * cut.row * plan.linformer;
    const SequenceMessages summaries{"attention, summaries", "all_reduce", "ring", 1,
                                     (sums + (plan.ring - 2) * shard(sums, plan.ring, r).size()) * a.sum_bytes()};
    traffic.forward.push_back(summaries);
    traffic.backward.push_back(summaries);
    return traffic;
  }
  const Passed passed = passed_on(cut);
  const int64_t token = cut.ring_key_heads * cut.row;
  if (!plan.self_attention) {
    const SequenceMessages blocks{"attention, keys and values", "exchange", "ring", passed.messages, 2 * passed.blocks * token * e};
    traffic.forward.push_back(blocks);
    traffic.backward.push_back(blocks);
    traffic.backward.push_back({"attention, their gradients", "exchange", "ring", passed.messages,
                                2 * passed.sums * token * a.sum_bytes()});
    return traffic;
  }
  const SequenceMessages rings{"attention, keys, then values", "exchange", "ring", 2 * passed.messages, 2 * passed.blocks * token * e};
  traffic.forward.push_back(rings);
  traffic.backward.push_back(rings);
  if (plan.all_reduce) {
    const int64_t whole = token * a.seq_len;
    traffic.backward.push_back({"attention, their gradients", "all_reduce", "ring", 2,
                                2 * (whole + (plan.ring - 2) * shard(whole, plan.ring, r).size()) * a.sum_bytes()});
  } else {
    traffic.backward.push_back({"attention, their gradients", "exchange", "ring", 2 * passed.messages,
                                2 * passed.sums * token * a.sum_bytes()});
  }
  return traffic;
}

SequenceMemory sequence_memory(const SequencePlan& plan, const SequenceAttention& a, int u, int r) {
  const Cut cut(plan, a, u, r);
  const int64_t e = a.element_bytes, sums = a.sum_bytes();
  const int64_t q = cut.own.query.size() * cut.own_block() * cut.row;  // elements, inside the Ulysses exchange
  const int64_t kv = cut.ring_key_heads * cut.own_block() * cut.row;
  const int64_t statistic = cut.own.query.size() * cut.own_block() * a.sequences;
  const int64_t outside = a.heads * cut.own_tokens * cut.row;
  const int64_t largest_block = *std::max_element(cut.blocks.begin(), cut.blocks.end());
  const int64_t block = 2 * cut.ring_key_heads * largest_block * cut.row;  // keys and values of a member
  SequenceMemory memory;
  memory.kept_bytes = (2 * q + 2 * kv) * e + (plan.ulysses > 1 ? outside * e : 0);
  if (plan.self_attention) {
    const int64_t scores = statistic * a.seq_len;
    memory.kept_bytes += scores * e;
    // In backward: dP or dS, its product with P, and the sums.
    memory.working_bytes = 2 * scores * e + 3 * q * sums + block * e + (plan.all_reduce ? kv / std::max<int64_t>(1, cut.own_block()) * a.seq_len * e : block * sums);
    return memory;
  }
  memory.kept_bytes += statistic * sums;
  if (plan.linformer > 0) {
    const int64_t summaries = 2 * cut.ring_key_heads * cut.row * plan.linformer;
    memory.kept_bytes += summaries * (plan.ring > 1 ? sums : e);
    // In backward: gradients of the summaries, by query head and summed. Those of q, k and v are no more than without.
    memory.working_bytes = summaries * (cut.own.query.size() / cut.ring_key_heads + 2) * sums;
    if (plan.ring > 1 && e != sums) memory.working_bytes += q * sums;  // q, the output and its gradient, for the kernel
  } else if (plan.ring > 1) {
    // In backward: two blocks and two sums under way, a share, and dQ with the share of it.
    memory.working_bytes = 2 * block * e + 4 * block * sums + 2 * q * sums;
  }
  if (plan.ulysses > 1) memory.working_bytes += 2 * (2 * q + 2 * kv) * e;  // both sides of an all-to-all
  return memory;
}

}  // namespace orthant
