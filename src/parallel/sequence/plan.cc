#include "parallel/sequence/plan.h"

#include <algorithm>

#include "base/errors.h"
#include "mesh/layout.h"
#include "parallel/sequence/ulysses/heads_plan.h"

namespace orthant {
namespace {

// The ranks' shares of one microbatch, in elements of q a token of a head.
struct Cut {
  Cut(const SequencePlan& plan_in, const SequenceAttention& attention_in, int u, int r_in)
      : plan(plan_in), a(attention_in), r(r_in), row(attention_in.sequences * attention_in.head_dim) {
    for (int ring = 0; ring < plan.ring; ++ring) {
      blocks.push_back(num_ring_places(plan.placement, a.seq_len, plan.ring, ring));
    }
    for (int v = 0; v < plan.ulysses; ++v) {
      shares.push_back(head_share(a.heads, a.key_heads, plan.ulysses, v));
      tokens.push_back(num_held_places(plan.placement, a.seq_len, plan.ulysses, v, plan.ring, r));
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

// Elements that leave this rank when tokens become heads, and the other way round, of so many tensors with query heads
// and with key heads.
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
    for (int s = 0; s < window - 1; ++s, ++passed.messages)
      passed.blocks += block(o, s), passed.sums += block(o, s + 1);
    if (o < windows - 1) passed.blocks += block(o, 0), passed.sums += block(o + 1, 0), ++passed.messages;
  }
  return passed;
}

// Of ATen's flash kernel, backward, on one thread: probabilities and their gradients of a tile of its own, in float32
// or better and in the type of its inputs.
int64_t kernel_scratch(int64_t queries, int64_t keys, int64_t sum_bytes, int64_t element_bytes) {
  const int64_t rows = queries >= 768 ? 256 : queries >= 192 ? 64 : 32;
  return 2 * rows * std::min<int64_t>(keys, 512) * (sum_bytes + (element_bytes < sum_bytes ? element_bytes : 0));
}

}  // namespace

SequenceTraffic sequence_traffic(const SequencePlan& plan, const SequenceAttention& a, int u, int r) {
  const Cut cut(plan, a, u, r);
  SequenceTraffic traffic;
  const int64_t e = a.element_bytes;
  if (plan.ulysses > 1) {
    traffic.forward.push_back(
        {"attention, heads", "all_to_all", "ulysses", 2, (to_heads(cut, 1, 2) + to_tokens(cut, 1, 0)) * e});
    traffic.backward.push_back(
        {"attention, heads", "all_to_all", "ulysses", 2, (to_heads(cut, 1, 0) + to_tokens(cut, 1, 2)) * e});
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
    const SequenceMessages blocks{"attention, keys and values", "exchange", "ring", passed.messages,
                                  2 * passed.blocks * token * e};
    traffic.forward.push_back(blocks);
    traffic.backward.push_back(blocks);
    traffic.backward.push_back(
        {"attention, their gradients", "exchange", "ring", passed.messages, 2 * passed.sums * token * a.sum_bytes()});
    return traffic;
  }
  const SequenceMessages rings{"attention, keys, then values", "exchange", "ring", 2 * passed.messages,
                               2 * passed.blocks * token * e};
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
  const int64_t heads = cut.own.query.size(), key_heads = cut.ring_key_heads;
  const int64_t q = heads * cut.own_block() * cut.row;  // elements, inside the Ulysses exchange
  const int64_t kv = key_heads * cut.own_block() * cut.row;
  const int64_t statistic = heads * cut.own_block() * a.sequences;
  const int64_t outside = a.heads * cut.own_tokens * cut.row, outside_keys = a.key_heads * cut.own_tokens * cut.row;
  const int64_t largest = *std::max_element(cut.blocks.begin(), cut.blocks.end());
  const int64_t block = 2 * key_heads * largest * cut.row;                           // keys and values of a member
  const int64_t per_query_head = 2 * heads * largest * cut.row;                      // the same, as kernels want them
  const int64_t expanded = key_heads > 1 && key_heads < heads ? per_query_head : 0;  // one head needs no copies
  const int64_t exact = e < sums ? sums : 0;  // bytes of what is copied to the precision of the sums

  SequenceMemory memory;
  memory.kept_bytes = (2 * q + 2 * kv) * e + (plan.ulysses > 1 ? outside * e : 0);
  // Blocks that are here and arrive; the own share, and sums that leave and arrive.
  const auto under_way = [&](int64_t size) {
    const int64_t last = (plan.ring > 2 ? 3 : 1) * size * sums + size * e;
    return plan.ring == 1 ? size * e : plan.ring <= 3 ? std::max(2 * size * e, last) : last + size * e;
  };
  if (plan.linformer > 0) {
    const int64_t summaries = 2 * key_heads * cut.row * plan.linformer;
    memory.kept_bytes += statistic * sums + summaries * (plan.ring > 1 ? sums : e);
    // In backward: gradients of the summaries, by query head and summed. Those of q, k and v are no more than without.
    memory.working_bytes = summaries * (heads / key_heads + 2) * sums + (plan.ulysses > 1 ? q * e : 0);
    if (plan.ring > 1 && e != sums) memory.working_bytes += q * sums;  // q, the output and its gradient, for the kernel
    return memory;
  }
  int64_t working = 0;  // at most in backward, beside the output's gradient
  if (plan.self_attention) {
    const int64_t row = statistic * a.seq_len, square = statistic * largest, one = block / 2;
    memory.kept_bytes += row * e;
    // dP or dS, and a block's share. At first, of the own block: its product, and two blocks. Later, of half a block:
    // dQ, dV.
    const int64_t first = square * sums + 2 * one * e;
    const int64_t later = square / 2 * sums + (q + kv) * sums + under_way(one);
    working = (row + one) * sums + std::max(first, later) + (key_heads < heads ? q * sums : 0) + 2 * (q + one) * exact;
    if (plan.all_reduce) working += key_heads * a.seq_len * cut.row * sums;
  } else {
    memory.kept_bytes += statistic * sums;
    // Keys and values by query head; gradients of queries, and of both by query head.
    const int64_t kernel = plan.ring > 1 ? sums : e;
    working = (expanded + q + per_query_head) * kernel + kernel_scratch(cut.own_block(), largest, sums, kernel);
    // Sums of a block's tiles, and of all blocks: dQ, and dQ, dK and dV. What is copied to the precision of the sums.
    if (plan.ring > 1) working += (2 * q + block) * sums + under_way(block) + (3 * q + block) * exact;
  }
  if (plan.ulysses > 1) working += q * e;  // the output's gradient, by heads
  // What one device has there is counted with the block: gradients of queries, keys and values, by head and side by
  // side.
  const int64_t counted = (3 * outside + 4 * outside_keys) * e;
  if (plan.parallel()) memory.working_bytes = std::max<int64_t>(0, working - counted);
  return memory;
}

double kept_scores(const SequencePlan& plan, const SequenceAttention& a) {
  if (!plan.self_attention) return 0;
  const int64_t heads = head_share(a.heads, a.key_heads, plan.ulysses, 0).query.size();  // no share is larger
  const auto length = static_cast<double>(a.seq_len);
  return static_cast<double>(a.sequences * heads) * (length / plan.ring + 2) * length;
}

}  // namespace orthant
