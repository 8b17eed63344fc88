// Measures the attention of one layer over sharded sequences, forward and backward. For a ring it also measures the
// blocks without messages, and the messages without blocks. Prints one line of JSON per number of tokens and layout;
// benchmarks/sequence/overlap.py and choices.py run it on emulated hosts and make tables.
//
//   sequence_attention --ranks 2 --cuts 1x2,2x1 --tokens 512,2048 --heads 8 --key-heads 2 --head-dim 64 --turns 5
//
// --cuts lists layouts ulysses x ring. Ulysses is innermost: if its size is the number of ranks per host, its groups
// are the hosts. Rings go through all hosts, with zigzag placement. --tokens is the number of tokens per rank, of one
// sequence in float32. The measured steps take turns, each from a barrier to the end of the slowest rank; results are
// medians. --own-block 1 times the rank's own block of a ring alone instead. A link rate is that of 4 MiB that every
// rank sends at the same time, to the next rank on its host or on the next host.
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <optional>

#include "benchmarks/ranks.h"
#include "parallel/sequence/ring.h"
#include "parallel/sequence/run.h"

namespace orthant {
namespace {

const Axes kInner = {"inner"}, kOuter = {"outer"}, kBoth = {"inner", "outer"};

struct Case {
  int ulysses = 1, ring = 1;
  int64_t tokens = 0;  // per rank
  AttentionShape shape;

  int64_t length() const { return tokens * ulysses * ring; }
  SequencePlacement placement() const { return ring > 1 ? SequencePlacement::zigzag : SequencePlacement::contiguous; }
};

at::Tensor values(at::IntArrayRef sizes, int64_t seed) {
  at::Tensor made = at::empty(sizes, at::kFloat);
  auto* out = made.mutable_data_ptr<float>();
  auto state = static_cast<uint64_t>(seed);
  for (int64_t i = 0; i < made.numel(); ++i) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    out[i] = static_cast<float>(state >> 40U) * 0x1p-23F - 1;
  }
  return made;
}

/// A rank's shards of q, k, v and of the output's gradient, [B,H,T,D]. In memory a token's heads are contiguous, as in
/// the model.
struct Inputs {
  Inputs(const Case& c, int rank)
      : q(of(c, c.shape.heads, 4 * rank)), k(of(c, c.shape.kv_heads, 4 * rank + 1)),
        v(of(c, c.shape.kv_heads, 4 * rank + 2)), dout(of(c, c.shape.heads, 4 * rank + 3)) {}
  static at::Tensor of(const Case& c, int64_t heads, int64_t seed) {
    return values({1, c.tokens, heads, c.shape.head_dim}, seed).transpose(1, 2);
  }
  at::Tensor q, k, v, dout;
};

/// Returns the mesh axes of Ulysses and of the ring. Ulysses uses no axis, the ranks of a host, or all ranks; the ring
/// uses the others. Throws ConfigError for other sizes.
std::pair<Axes, Axes> axes_of(const Case& c, const Comm& comm) {
  const Axes none;
  for (const auto& [ulysses, ring] : {std::pair{none, kBoth}, {kInner, kOuter}, {kBoth, none}}) {
    if (comm.mesh().group_size(ulysses) == c.ulysses && comm.mesh().group_size(ring) == c.ring) return {ulysses, ring};
  }
  throw ConfigError(fmt::format("{}x{}: ulysses must be 1, the {} ranks of a host, or all {}", c.ulysses, c.ring,
                                comm.group_size(kInner), comm.mesh().size()));
}

AttentionCore core_of(const Case& c, Comm& comm) {
  const auto [ulysses_axes, ring] = axes_of(c, comm);
  return sequence_attention(comm, {.ulysses = c.ulysses, .ring = c.ring, .placement = c.placement()},
                            {.ulysses = ulysses_axes, .ring = ring});
}

/// The two halves of ring attention: its computation with all blocks in local memory, and its messages without
/// computation.
class Alone {
 public:
  Alone(const Case& c, Comm& comm, const Microbatch& batch, const Inputs& own)
      : own_(own), comm_(comm), ring_(double_ring(c.ring, comm.position(kBoth), c.ring).inner),
        scale_(1 / std::sqrt(static_cast<double>(c.shape.head_dim))) {
    const auto own_positions = ring_positions(c.placement(), c.length(), c.ring, ring_.index);
    const Visibility seen = visibility(batch, c.shape.rule, own_positions);
    for (int member = 0; member < c.ring; ++member) {
      const Inputs theirs(c, member);
      blocks_.push_back(at::stack({theirs.k, theirs.v}));
      tiles_.push_back(attention_tiles(seen, ring_positions(c.placement(), c.length(), c.ring, member)));
    }
    share_ = at::zeros(blocks_[0].sizes(), at::kFloat);
  }

  PartialAttention forward() const {
    PartialAttention all;
    for (int step = 0; step < ring_.size(); ++step) {
      const auto member = static_cast<size_t>(ring_.source(step));
      const PartialAttention part =
          attend(AttentionKernel::flash, own_.q, blocks_[member][0], blocks_[member][1], tiles_[member], {scale_});
      if (step == 0) {
        all = part;
      } else {
        merge_partial_attention(all, part);
      }
    }
    return all;
  }
  at::Tensor backward(const at::Tensor& out, const at::Tensor& lse) const {
    const at::Tensor dq = at::zeros(own_.q.sizes(), at::kFloat);
    at::Tensor sum;
    for (int step = 0; step < ring_.size(); ++step) {
      const auto member = static_cast<size_t>(ring_.source(step));
      const AttentionGradients part = attend_backward(AttentionKernel::flash, own_.dout, own_.q, blocks_[member][0],
                                                      blocks_[member][1], out, lse, tiles_[member], {scale_});
      dq.add_(part.dq_BHTD);
      const at::Tensor share = at::stack({part.dk_BKSD, part.dv_BKSD});
      if (step == 0) {
        sum = share;
      } else {
        sum.add_(share);
      }
    }
    return dq;
  }
  /// This rank's own block in one causal call, as the ring computes it; or, for comparison, in two causal calls for the
  /// halves of the block and a full one for late queries and early keys.
  PartialAttention own_block(bool by_halves) const {
    const at::Tensor &k = blocks_[own()][0], &v = blocks_[own()][1];
    if (!by_halves) return attend(AttentionKernel::flash, own_.q, k, v, tiles_[own()], {scale_});
    PartialAttention all = attend(AttentionKernel::flash, own_.q, k, v, halves(), {scale_});
    merge_partial_attention(all, attend(AttentionKernel::flash, own_.q, k, v, rectangle(), {scale_}));
    return all;
  }
  at::Tensor own_block_backward(const PartialAttention& all, bool by_halves) const {
    const auto gradients = [&](const std::vector<AttentionTile>& tiles) {
      return attend_backward(AttentionKernel::flash, own_.dout, own_.q, blocks_[own()][0], blocks_[own()][1],
                             all.out_BHTD, all.lse_BHT, tiles, {scale_});
    };
    if (!by_halves) return gradients(tiles_[own()]).dq_BHTD;
    const AttentionGradients squares = gradients(halves()), rest = gradients(rectangle());
    squares.dk_BKSD.add_(rest.dk_BKSD), squares.dv_BKSD.add_(rest.dv_BKSD);
    return squares.dq_BHTD.add_(rest.dq_BHTD);
  }
  void forward_messages() const {
    visit_blocks({comm_, kBoth, 0}, ring_, blocks_[0], [&](int) { return at::empty_like(blocks_[0]); },
                 [](int, const at::Tensor&) {});
  }
  void backward_messages() const {
    int step = 0;
    const auto buffer = [&](int) { return at::empty(blocks_[0].sizes(), at::kFloat); };
    sum_over_blocks({comm_, kBoth, 0}, ring_, blocks_[0], buffer, buffer,
                    [&](int, const at::Tensor&) { return step++ == 1 ? share_ : at::Tensor(); });
  }
  /// Returns the FLOPs of this rank's forward, which has two products of all visible scores. Backward has five.
  double forward_flops(const AttentionShape& shape) const {
    double scores = 0;
    for (const auto& tiles : tiles_) {
      for (const AttentionTile& tile : tiles) scores += static_cast<double>(tile.scores());
    }
    return 4 * scores * static_cast<double>(shape.heads * shape.head_dim);
  }

 private:
  size_t own() const { return static_cast<size_t>(ring_.index); }
  std::vector<AttentionTile> halves() const {
    const int64_t all = own_.q.size(2), half = all / 2;
    return {{.sequence = -1, .query_end = half, .key_end = half, .kind = AttentionTile::causal},
            {.sequence = -1,
             .query_begin = half,
             .query_end = all,
             .key_begin = half,
             .key_end = all,
             .kind = AttentionTile::causal}};
  }
  std::vector<AttentionTile> rectangle() const {
    const int64_t all = own_.q.size(2), half = all / 2;
    return {{.sequence = -1, .query_begin = half, .query_end = all, .key_end = half, .kind = AttentionTile::full}};
  }

  const Inputs& own_;
  Comm& comm_;
  const Ring ring_;
  const double scale_;
  std::vector<at::Tensor> blocks_;
  std::vector<std::vector<AttentionTile>> tiles_;
  at::Tensor share_;
};

/// Returns the bits per second that every rank sends along the axis while all ranks send; 0 if the axis has one rank.
double link_rate(Comm& comm, const Axes& axis) {
  if (comm.group_size(axis) == 1) return 0;
  constexpr int64_t kBytes = 4 << 20;
  const at::Tensor out = at::zeros({kBytes / 4}, at::kFloat), in = at::zeros({kBytes / 4}, at::kFloat);
  std::vector<double> times_s;
  for (int i = 0; i < 4; ++i) times_s.push_back(time_step(comm, [&] { comm.shift(out, in, axis).wait(); }));
  times_s.erase(times_s.begin());
  return 8 * kBytes / quantile(times_s, 0.5);
}

struct Measure {
  std::string name;
  std::function<void()> step;
  std::vector<double> times_s = {};
};

/// Runs and times the steps in turns. The first turn is a warm-up.
void take_turns(Comm& comm, std::vector<Measure>& measures, int turns) {
  for (int turn = -1; turn < turns; ++turn) {
    for (Measure& m : measures) {
      const double seconds = time_step(comm, m.step);
      if (turn >= 0) m.times_s.push_back(seconds);
    }
  }
}

/// Times the rank's own block alone, by one causal call and by halves, and prints a line of JSON.
void measure_own_block(const Case& c, Comm& comm, int turns) {
  const Inputs own(c, comm.rank());
  Microbatch batch;
  batch.sequence_length = c.length();
  const Alone alone(c, comm, batch, own);
  const std::array<const char*, 2> names = {"one_call", "halves"};
  std::array<PartialAttention, 2> results;
  std::array<at::Tensor, 2> gradients;
  std::vector<Measure> measures;
  for (const size_t i : {size_t{0}, size_t{1}}) {
    measures.push_back({std::string(names[i]) + "_forward", [&, i] { results[i] = alone.own_block(i == 1); }});
    measures.push_back(
        {std::string(names[i]) + "_backward", [&, i] { gradients[i] = alone.own_block_backward(results[i], i == 1); }});
  }
  take_turns(comm, measures, turns);
  const double off = (gradients[1] - gradients[0]).norm().item<double>() / gradients[0].norm().item<double>();
  ORTHANT_CHECK(off < 1e-5, off);
  if (comm.rank() != 0) return;
  std::string times;
  for (Measure& m : measures) times += fmt::format(R"(, "{}_ms": {:.4f})", m.name, 1e3 * quantile(m.times_s, 0.5));
  fmt::print(R"({{"own_block": "{}x{}", "tokens": {}{}}})"
             "\n",
             c.ulysses, c.ring, c.tokens, times);
  std::fflush(stdout);
}

void measure_case(const Case& c, Comm& comm, int turns, const std::string& links) {
  const Inputs own(c, comm.rank());
  Microbatch batch;
  batch.sequence_length = c.length();
  const AttentionCore core = core_of(c, comm);
  std::vector<at::Tensor> kept;
  AttentionGradients gradients;
  std::vector<Measure> measures = {
      {"forward", [&] { kept = core.forward(own.q, own.k, own.v, batch, c.shape); }},
      {"backward", [&] { gradients = core.backward(own.dout, kept, batch, c.shape); }}};
  std::string flops;
  std::optional<Alone> alone;
  PartialAttention attended;
  at::Tensor dq;
  if (c.ulysses == 1 && c.ring > 1) {
    alone.emplace(c, comm, batch, own);
    measures.push_back({"forward_compute", [&] { attended = alone->forward(); }});
    measures.push_back({"backward_compute", [&] { dq = alone->backward(kept[0], kept[4]); }});
    measures.push_back({"forward_transfer", [&] { alone->forward_messages(); }});
    measures.push_back({"backward_transfer", [&] { alone->backward_messages(); }});
    flops = fmt::format(R"(, "forward_flops": {:.6g})", alone->forward_flops(c.shape));
  }
  const int64_t before = comm.total_traffic().bytes.sent;
  measures[0].step(), measures[1].step();
  const int64_t sent = comm.total_traffic().bytes.sent - before;
  take_turns(comm, measures, turns);
  // The halves do the same work as the layer: outputs are bit-equal. dq may differ in rounding, because the ring adds
  // half of its own block to dq at the end.
  if (alone) {
    const double off = (dq - gradients.dq_BHTD).norm().item<double>() / dq.norm().item<double>();
    ORTHANT_CHECK(at::equal(attended.out_BHTD, kept[0]) && off < 2 * c.ring * 0x1p-24, c.ring, c.tokens, off);
    const int64_t start = comm.total_traffic().bytes.sent;
    alone->forward_messages(), alone->backward_messages();
    ORTHANT_CHECK(comm.total_traffic().bytes.sent - start == sent, sent);
  }
  if (comm.rank() != 0) return;
  std::string times;
  for (Measure& m : measures) times += fmt::format(R"(, "{}_ms": {:.4f})", m.name, 1e3 * quantile(m.times_s, 0.5));
  fmt::print(R"({{"cut": "{}x{}", "tokens": {}, "sent_bytes": {}{}{}{}}})"
             "\n",
             c.ulysses, c.ring, c.tokens, sent, links, flops, times);
  std::fflush(stdout);
}

void measure(const Settings& settings, Comm& comm) {
  const double inner = link_rate(comm, kInner), outer = link_rate(comm, kOuter);
  const std::string links = fmt::format(R"(, "inner_gbit": {:.4g}, "outer_gbit": {:.4g})", 1e-9 * inner, 1e-9 * outer);
  for (const int64_t tokens : settings.integers("tokens")) {
    for (const auto& cut : split(settings.text("cuts"), ',')) {
      Case c{.tokens = tokens, .shape = {}};
      c.shape.heads = settings.integers("heads")[0];
      c.shape.kv_heads = settings.integers("key-heads")[0];
      c.shape.head_dim = settings.integers("head-dim")[0];
      const auto parts = split(cut, 'x');
      if (parts.size() != 2) throw ConfigError("--cuts " + cut + ": ulysses x ring, like 2x1");
      c.ulysses = std::stoi(parts[0]);
      c.ring = std::stoi(parts[1]);
      const int turns = static_cast<int>(settings.number("turns"));
      if (settings.number("own-block") > 0) {
        measure_own_block(c, comm, turns);
      } else {
        measure_case(c, comm, turns, links);
      }
    }
  }
}

int run(int argc, char** argv) {
  const Settings settings(argc, argv,
                          {{"ranks", "2"},
                           {"transport", "auto"},
                           {"cuts", "1x2"},
                           {"tokens", "512"},
                           {"heads", "8"},
                           {"key-heads", "2"},
                           {"head-dim", "64"},
                           {"turns", "5"},
                           {"own-block", "0"}});
  return measure_on_ranks(argc, argv, static_cast<int>(settings.number("ranks")), settings.text("transport"),
                          [&](Comm& comm) { measure(settings, comm); },
                          [](const Launch& launch) {
                            const int hosts = launch.world_size / launch.local_size;
                            return Mesh({{"inner", launch.local_size}, {"outer", hosts}});
                          });
}

}  // namespace
}  // namespace orthant

int main(int argc, char** argv) { return orthant::run_benchmark(argc, argv, orthant::run); }
