#include "parallel/sequence/plan.h"

#include <algorithm>
#include <array>

#include "base/errors.h"
#include "mesh/collective.h"
#include "model/architecture.h"
#include "parallel/sequence/ulysses/heads_plan.h"

namespace orthant {
namespace {

// Sizes of the shards of one microbatch, seen from one rank. row: elements of one head at one position, over all
// sequences.
struct Cut {
  Cut(const SequencePlan& plan_in, const SequenceAttention& attention_in, int u, int r_in)
      : plan(plan_in), a(attention_in), r(r_in), row(attention_in.sequences * attention_in.head_dim) {
    own = head_shard(a.heads, a.key_heads, plan.ulysses, u);
    own_tokens = num_held_positions(plan.placement, a.seq_len, plan.ulysses, u, plan.ring, r);
    ring_key_heads = own.regular(a.heads, a.key_heads) ? own.key.size() : own.query.size();
  }
  int64_t block(int member) const { return num_ring_positions(plan.placement, a.seq_len, plan.ring, member); }
  int64_t own_block() const { return block(r); }
  // Earlier shards are the larger ones, and a zigzag block has one part from each end of the sequence. So the first or
  // the last member has the largest block.
  int64_t largest_block() const { return std::max(block(0), block(plan.ring - 1)); }

  const SequencePlan& plan;
  const SequenceAttention& a;
  int r;
  int64_t row;
  HeadShard own;
  int64_t own_tokens = 0, ring_key_heads = 0;
};

// Elements that this rank sends in the all-to-all from shards of tokens to shards of heads, and in the one back.
// queries, keys: number of tensors with query heads, and with key heads.
int64_t to_heads(const Cut& cut, int64_t queries, int64_t keys) {
  int64_t heads = -queries * cut.own.query.size() - keys * cut.own.key.size();
  for (int v = 0; v < cut.plan.ulysses; ++v) {
    const HeadShard share = head_shard(cut.a.heads, cut.a.key_heads, cut.plan.ulysses, v);
    heads += queries * share.query.size() + keys * share.key.size();
  }
  return heads * cut.own_tokens * cut.row;
}
int64_t to_tokens(const Cut& cut, int64_t queries, int64_t keys) {
  return (queries * cut.own.query.size() + keys * cut.own.key.size()) * (cut.own_block() - cut.own_tokens) * cut.row;
}

// Tokens of the blocks and of the sums that this rank passes on and receives, and the number of messages of each. Sums
// follow their blocks one step later.
struct Passed {
  Moved blocks, sums;
  int64_t messages = 0;
};
Passed passed_on(const Cut& cut) {
  const int window = cut.plan.window > 0 ? cut.plan.window : cut.plan.ring, windows = cut.plan.ring / window;
  const int w = cut.r / window, i = cut.r % window;
  // Inner ring: the rank sends all blocks of each window, except the next member's. Outer ring: it sends the block at
  // its own index of each window once more, to the next window, except that window's own. It sends all sums but its
  // own. It receives all blocks but its own. A sum starts at the member after its block's, and each rank receives all
  // others: of each window in the inner ring, and of all windows at its own index in the outer ring.
  const int64_t length = cut.a.seq_len, others = length - cut.own_block();
  Passed passed{.blocks = {length, others}, .sums = {others, length}, .messages = windows * window - 1};
  for (int o = 0; o < windows; ++o) {
    const int64_t at_index = cut.block(o * window + i);
    passed.blocks.sent += at_index - cut.block(o * window + (i + 1) % window);
    passed.sums.received += at_index - cut.block(o * window + (i + window - 1) % window);
  }
  passed.blocks.sent -= cut.block((w + 1) % windows * window + i);
  passed.sums.received -= cut.block((w + windows - 1) % windows * window + i);
  return passed;
}

// Elements that this rank sends and receives in an all-reduce of `elements` over the ring.
Moved reduced(const Cut& cut, int64_t elements) {
  return elements_moved(CollectiveKind::all_reduce, cut.plan.ring, cut.r, std::array{elements});
}

// Scratch bytes of ATen's flash kernel in backward, on one thread. It holds probabilities and their gradients of one
// tile in the precision of sums, and copies in the dtype of its inputs if that is narrower. Tiles have 512 keys and 32
// queries: 64 from 192 queries on, 256 from 768 on (cpu_flash_attention_backward in libtorch 2.11 to 2.13).
int64_t kernel_scratch(int64_t queries, int64_t keys, int64_t sum_bytes, int64_t element_bytes) {
  const int64_t rows = queries >= 768 ? 256 : queries >= 192 ? 64 : 32;
  return 2 * rows * std::min<int64_t>(keys, 512) * (sum_bytes + (element_bytes < sum_bytes ? element_bytes : 0));
}

// A part of a block. One call of the kernel computes its gradients, for all sequences.
struct Tile {
  int64_t heads, queries, keys;
};

// Scratch bytes in backward of attention with capped scores: scores, slopes and gradients of a block of queries, a copy
// of the keys and values in the precision of sums if they are narrower, and gradients in that precision.
int64_t capped_scratch(const Cut& cut, const Tile& tile, int64_t sum_bytes, int64_t element_bytes) {
  const int64_t heads = cut.a.sequences * tile.heads;
  const int64_t rows = std::min(tile.queries, capped_score_rows(heads, tile.keys, cut.a.on_gpu));
  const int64_t wide = element_bytes < sum_bytes ? tile.heads * (4 * tile.keys + tile.queries) * cut.row : 0;
  return (3 * heads * rows * tile.keys + wide) * sum_bytes;
}

// Elements of the tensors on a rank: inside the Ulysses exchange (its heads, the tokens of its ring block), and outside
// it (all heads, its own tokens).
struct Held {
  explicit Held(const Cut& cut)
      : e(cut.a.element_bytes),
        sums(cut.a.sum_bytes()),
        exact(e < sums ? sums : 0),
        ring(cut.plan.ring),
        window(cut.plan.window > 0 ? cut.plan.window : cut.plan.ring),
        heads(cut.own.query.size()),
        key_heads(cut.ring_key_heads),
        q(heads * cut.own_block() * cut.row),
        kv(key_heads * cut.own_block() * cut.row),
        statistic(heads * cut.own_block() * cut.a.sequences),
        largest(cut.largest_block()),
        block(2 * key_heads * largest * cut.row),
        outside(cut.a.heads * cut.own_tokens * cut.row),
        outside_keys(cut.a.key_heads * cut.own_tokens * cut.row),
        by_heads(cut.plan.ulysses > 1 ? q * e : 0) {}

  // Peak bytes of travelling tensors, for blocks of `size` elements. There are the present and the arriving block, the
  // rank's own partial sum, and a sum leaving and one arriving. The inner ring holds its own in addition to those of
  // the outer ring, whose block is the inner ring's first.
  int64_t under_way(int64_t size) const {
    const auto sums_of = [&](int64_t step) { return step == 0 ? 0 : step == 1 ? sums : 3 * sums; };
    int64_t most = 0;
    for (int64_t o = 0; o < std::min<int64_t>(ring / window, 3); ++o) {
      for (int64_t i = 0; i < std::min<int64_t>(window, 3); ++i) {
        const bool should_continue = o + 1 < ring / window;
        const int64_t blocks = (should_continue ? (i == 0 ? 1 : 2) : 0) + (i + 1 < window ? 2 : 1);
        most = std::max(most, blocks * e + sums_of(o) + sums_of(i));
      }
    }
    return most * size;
  }
  // Working bytes beyond those of one device, which are counted with the transformer block: gradients of queries, keys
  // and values by head and fused side by side, and that of the output.
  int64_t beyond_one_device(int64_t working) const {
    return std::max<int64_t>(0, working + by_heads - (3 * outside + 4 * outside_keys) * e);
  }

  int64_t e, sums, exact;  // bytes of an element, of a sum, and of an element's copy in the precision of sums (0: none)
  int64_t ring, window, heads, key_heads;
  int64_t q, kv, statistic;
  int64_t largest, block;  // tokens of the largest block; its keys and values
  int64_t outside, outside_keys;
  int64_t by_heads;  // bytes of the output's gradient after the exchange; 0 without Ulysses
};

// Returns the tiles that may need the most working memory. A ring computes its own block in two halves of the heads.
// With a causal mask and zigzag, half of this rank's queries see the block of a later member, and all see half of the
// block of an earlier one. Without capped scores the kernel's scratch is small, and the whole block stands for all.
std::vector<Tile> largest_tiles(const Cut& cut, const Held& h) {
  const int64_t queries = cut.own_block();
  const Tile whole{h.heads, queries, h.largest};
  if (!cut.a.capped || h.ring == 1) return {whole};
  const int64_t shared = h.heads / h.key_heads;
  const int64_t half = h.key_heads > 1 ? h.heads - h.key_heads / 2 * shared : (h.heads + 1) / 2;
  const Tile own{half, queries, queries};
  if (cut.plan.placement != SequencePlacement::zigzag || !cut.a.causal) return {own, whole};
  return {own, {h.heads, (queries + 1) / 2, h.largest}, {h.heads, queries, (h.largest + 1) / 2}};
}

// Bytes in backward of one call of the kernel: keys and values by query head, of which there are all_keys, gradients of
// queries, and of keys and values by query head, and scratch.
int64_t tile_bytes(const Cut& cut, const Held& h, const Tile& tile, int64_t all_keys, int64_t element_bytes) {
  const bool is_expanded = h.key_heads > 1 && h.key_heads < h.heads;  // one head needs no copies
  const int64_t tokens = (is_expanded ? 2 * all_keys : 0) + tile.queries + 2 * tile.keys;
  const int64_t scratch = cut.a.capped ? capped_scratch(cut, tile, h.sums, element_bytes)
                                       : kernel_scratch(tile.queries, tile.keys, h.sums, element_bytes);
  return tile.heads * tokens * cut.row * element_bytes + scratch;
}

// The memory of each method: bytes kept in addition to q, k, v and the output, and the peak in backward in addition to
// the output's gradient.
SequenceMemory ring_attention_memory(const Cut& cut, const Held& h) {
  const int64_t kernel = h.ring > 1 ? h.sums : h.e;
  int64_t working = 0;
  for (const Tile& tile : largest_tiles(cut, h)) {
    working = std::max(working, tile_bytes(cut, h, tile, h.largest, kernel));
  }
  // Sums: dQ over one block's tiles and over all blocks, dK and dV of a block. Then blocks and sums on their way, and
  // copies in the precision of sums.
  if (h.ring > 1) working += (2 * h.q + h.block) * h.sums + h.under_way(h.block) + (3 * h.q + h.block) * h.exact;
  return {h.statistic * h.sums, cut.plan.parallel() || cut.a.capped ? h.beyond_one_device(working) : 0};
}

SequenceMemory ring_self_attention_memory(const Cut& cut, const Held& h) {
  const int64_t row = h.statistic * cut.a.seq_len, square = h.statistic * h.largest, one = h.block / 2;
  // dP or dS, and the partial sum of a block. In the first step, for the rank's own block: its product, and two blocks.
  // In later steps: the product of half a block, dQ and dV.
  const int64_t first = square * h.sums + 2 * one * h.e;
  const int64_t later = square / 2 * h.sums + (h.q + h.kv) * h.sums;
  // Partial sums travel round the ring, or are rows of the tensor that is all-reduced.
  const int64_t travels = cut.plan.all_reduce ? 2 * one * h.e : h.under_way(one);
  const int64_t shares = (cut.plan.all_reduce ? h.key_heads * cut.a.seq_len * cut.row : one) * h.sums;
  const int64_t working = row * h.sums + shares + std::max(first, later + travels) +
                          (h.key_heads < h.heads ? h.q * h.sums : 0) + 2 * (h.q + one) * h.exact;
  return {row * h.e, h.beyond_one_device(working)};
}

SequenceMemory linformer_memory(const Cut& cut, const Held& h) {
  const int64_t summaries = 2 * h.key_heads * cut.row * cut.plan.summary_length;
  // In backward: gradients of the summaries, by query head and summed. Gradients of q, k and v take no more than on one
  // device.
  int64_t working = summaries * (h.heads / h.key_heads + 2) * h.sums + h.by_heads;
  if (h.ring > 1) working += h.q * h.exact;  // q, the output and its gradient, for the kernel
  if (cut.a.capped) {
    const int64_t kernel = h.ring > 1 ? h.sums : h.e;
    const Tile all{h.heads, cut.own_block(), cut.plan.summary_length};
    const int64_t scores = tile_bytes(cut, h, all, all.keys, kernel) + 3 * h.q * (h.ring > 1 ? h.exact : 0);
    working = std::max(working, h.beyond_one_device(scores));
  }
  return {h.statistic * h.sums + summaries * (h.ring > 1 ? h.sums : h.e), working};
}

}  // namespace

SequenceMethod sequence_method_of(std::string_view name) {
  if (name == "ring_self_attention") return SequenceMethod::ring_self_attention;
  if (name == "linformer") return SequenceMethod::linformer;
  ORTHANT_CHECK(name == "ring_attention", name);
  return SequenceMethod::ring_attention;
}

SequenceTraffic sequence_traffic(const SequencePlan& plan, const SequenceAttention& a, int u, int r) {
  const Cut cut(plan, a, u, r);
  SequenceTraffic traffic;
  const int64_t e = a.element_bytes;
  if (plan.ulysses > 1) {
    // An exchange receives what its reverse sends.
    const Moved forward{to_heads(cut, 1, 2) + to_tokens(cut, 1, 0), to_tokens(cut, 1, 2) + to_heads(cut, 1, 0)};
    const Moved backward{forward.received, forward.sent};
    traffic.forward.push_back({"attention, heads", "all_to_all", kUlysses, 2, e * forward});
    traffic.backward.push_back({"attention, heads", "all_to_all", kUlysses, 2, e * backward});
  }
  if (plan.ring == 1) return traffic;
  if (plan.method == SequenceMethod::linformer) {
    const int64_t sums = 2 * cut.ring_key_heads * cut.row * plan.summary_length;
    const Messages summaries{"attention, summaries", "all_reduce", kRing, 1, a.sum_bytes() * reduced(cut, sums)};
    traffic.forward.push_back(summaries);
    traffic.backward.push_back(summaries);
    return traffic;
  }
  const Passed passed = passed_on(cut);
  const int64_t token = cut.ring_key_heads * cut.row;
  if (plan.method == SequenceMethod::ring_attention) {
    const Messages blocks{"attention, keys and values", "exchange", kRing, passed.messages,
                          2 * token * e * passed.blocks};
    traffic.forward.push_back(blocks);
    traffic.backward.push_back(blocks);
    traffic.backward.push_back(
        {"attention, their gradients", "exchange", kRing, passed.messages, 2 * token * a.sum_bytes() * passed.sums});
    return traffic;
  }
  const Messages rings{"attention, keys, then values", "exchange", kRing, 2 * passed.messages,
                       2 * token * e * passed.blocks};
  traffic.forward.push_back(rings);
  traffic.backward.push_back(rings);
  if (plan.all_reduce) {
    traffic.backward.push_back(
        {"attention, their gradients", "all_reduce", kRing, 2, 2 * a.sum_bytes() * reduced(cut, token * a.seq_len)});
  } else {
    traffic.backward.push_back({"attention, their gradients", "exchange", kRing, 2 * passed.messages,
                                2 * token * a.sum_bytes() * passed.sums});
  }
  return traffic;
}

SequenceMemory sequence_memory(const SequencePlan& plan, const SequenceAttention& a, int u, int r) {
  const Cut cut(plan, a, u, r);
  const Held held(cut);
  const auto of_method = plan.method == SequenceMethod::linformer             ? linformer_memory
                         : plan.method == SequenceMethod::ring_self_attention ? ring_self_attention_memory
                                                                              : ring_attention_memory;
  SequenceMemory memory = of_method(cut, held);
  memory.saved_bytes += (2 * held.q + 2 * held.kv) * held.e + (plan.ulysses > 1 ? held.outside * held.e : 0);
  return memory;
}

double max_saved_score_elements(const SequencePlan& plan, const SequenceAttention& a) {
  if (plan.method != SequenceMethod::ring_self_attention) return 0;
  const int64_t heads = head_shard(a.heads, a.key_heads, plan.ulysses, 0).query.size();  // rank 0 has the most heads
  const auto length = static_cast<double>(a.seq_len);
  return static_cast<double>(a.sequences * heads) * (length / plan.ring + 2) * length;
}

}  // namespace orthant
