// Times of products, attentions and memory-bound kernels. tools/fit_kernels.py has the same formulas in Python
// (without the time in which attention reads and writes memory), and fits their parameters to measurements.
#include <algorithm>
#include <array>
#include <cmath>

#include "base/errors.h"
#include "hardware/times.h"

namespace orthant {
namespace {

struct Dtype {
  double peak_flop_per_s, bytes;
};

Dtype find_dtype(const Hardware& hardware, std::string_view name) {
  const PeakTable& peak = hardware.peak_flop_per_s;
  if (name == "bfloat16") return {peak.bfloat16, 2};
  if (name == "float32") return {peak.float32, 4};
  ORTHANT_CHECK(name == "float64", name);
  return {peak.float64, 8};
}

double memory_rate(const Hardware& hardware) { return hardware.memory.bytes_per_s * hardware.memory.share; }

// Returns the quotient rounded up, as a double, because products of sizes may exceed 64 bits.
double count_tiles(int64_t size, int64_t tile) {
  return static_cast<double>(size / tile) + (size % tile == 0 ? 0.0 : 1.0);
}

// Returns the FLOPs that all compute units could have done in the time of the kernel, at the full rate of a tile.
double tiled_flop(const ProductTable& model, double units, int64_t m, int64_t k, int64_t n) {
  struct Tile {
    int64_t rows, columns;
    double share;
  };
  const auto [rows, columns] = model.tile;
  const std::array<Tile, 3> tiles = {{{rows, columns, 1},
                                      {columns, rows, 1},
                                      {rows, std::max<int64_t>(1, columns / 2), model.small_tile_share}}};
  double least = INFINITY;
  for (const Tile& tile : tiles) {
    const double waves = count_tiles(m, tile.rows) * count_tiles(n, tile.columns) / units;
    const double lost = model.wave_loss * (std::ceil(waves) - waves);
    const double tile_flop = 2.0 * static_cast<double>(tile.rows) * static_cast<double>(tile.columns) *
                             static_cast<double>(k);
    least = std::min(least, std::max(1.0, waves + lost) * units * tile_flop / tile.share);
  }
  return least;
}

}  // namespace

double peak_flop_per_s(const Hardware& hardware, std::string_view dtype) {
  return find_dtype(hardware, dtype).peak_flop_per_s;
}

double throttled_share(double work_flop, double sustained_share, double half_work_flop) {
  const double root = std::sqrt(work_flop / half_work_flop);
  return (1 + sustained_share * root) / (1 + root);
}

double product_seconds(const Hardware& hardware, ProductKind kind, int64_t m, int64_t k, int64_t n,
                       std::string_view dtype) {
  ORTHANT_CHECK(m >= 1 && k >= 1 && n >= 1, m, k, n);
  const ProductTable& model = hardware.products;
  const Dtype operands = find_dtype(hardware, dtype);
  const bool is_weight_gradient = kind == ProductKind::weight_gradient || kind == ProductKind::weight_gradient_float32;
  double output_element_bytes = operands.bytes;  // written
  if (is_weight_gradient) {                      // read and written
    output_element_bytes = 2 * (kind == ProductKind::weight_gradient ? operands.bytes : std::max(4.0, operands.bytes));
  }
  const double rows = static_cast<double>(m), inner = static_cast<double>(k), columns = static_cast<double>(n);
  const double share = (is_weight_gradient ? model.weight_gradient_share : model.share) *
                       throttled_share(2 * rows * inner * columns, model.sustained_share, model.half_work_flop);
  const double flop = tiled_flop(model, static_cast<double>(hardware.device.compute_units), m, k, n);
  const double output_bytes = output_element_bytes * rows * columns;
  const double operand_bytes = operands.bytes * inner * (rows + columns), all_bytes = operand_bytes + output_bytes;
  const double exposed_bytes = output_bytes + model.operand_traffic * operand_bytes;
  const double compute = flop / (operands.peak_flop_per_s * share) + exposed_bytes / memory_rate(hardware);
  return model.latency_seconds + std::max(compute, all_bytes / memory_rate(hardware));
}

double attention_flop(const AttentionSize& size, bool backward) {
  const double pairs = static_cast<double>(size.query_tokens) * static_cast<double>(size.key_tokens) *
                       size.visible_share;
  const double heads = static_cast<double>(size.sequences) * static_cast<double>(size.heads);
  return (backward ? 2.5 : 1.0) * 2 * pairs * heads * static_cast<double>(size.qk_head_dim + size.v_head_dim);
}

double attention_seconds(const Hardware& hardware, bool backward, const AttentionSize& size, std::string_view dtype) {
  constexpr int64_t kUsualHead = 128;
  ORTHANT_CHECK(size.sequences >= 1 && size.query_tokens >= 1 && size.key_tokens >= 1 && size.heads >= 1 &&
                    size.kv_heads >= 1 && size.qk_head_dim >= 1 && size.v_head_dim >= 1 && size.visible_share >= 0 &&
                    size.visible_share <= 1,
                size.query_tokens, size.key_tokens, size.heads, size.visible_share);
  const AttentionTable& model = hardware.attention;
  const AttentionPassTable& pass = backward ? model.backward : model.forward;
  const Dtype operands = find_dtype(hardware, dtype);
  const double units = static_cast<double>(hardware.device.compute_units);

  AttentionSize tile = size;  // the tile whose queries see the most keys
  tile.sequences = tile.heads = 1;
  tile.query_tokens = pass.tile_rows;
  tile.visible_share = std::min(1.0, 2 * size.visible_share);
  const double longest = attention_flop(tile, backward) * units;
  AttentionSize padded = size;
  padded.query_tokens = static_cast<int64_t>(count_tiles(size.query_tokens, pass.tile_rows)) * pass.tile_rows;
  const double work = attention_flop(padded, backward);

  const double head_share = size.qk_head_dim > kUsualHead   ? pass.wide_head_share
                            : size.qk_head_dim < kUsualHead ? pass.narrow_head_share
                                                            : 1.0;
  const double share = pass.share * head_share * throttled_share(work, model.sustained_share, model.half_work_flop);
  const bool is_wide = size.stores_scores && operands.bytes < 4;  // products of float32 operands
  const double rate = is_wide ? find_dtype(hardware, "float32").peak_flop_per_s : operands.peak_flop_per_s;
  const double compute = std::max(longest, work + pass.tail * longest) / (rate * share);
  const double head_elements = static_cast<double>(size.qk_head_dim + size.v_head_dim);
  const double elements = static_cast<double>(size.sequences) * head_elements *
                          (static_cast<double>(size.query_tokens) * static_cast<double>(size.heads) +
                           static_cast<double>(size.key_tokens) * static_cast<double>(size.kv_heads));
  const double bytes = (backward ? 2 : 1) * operands.bytes * elements;  // backward also has all gradients
  // Reads and writes of a stored score, in the order of class AttentionByDefinition in model/attention.cc.
  const double accesses = size.stores_scores ? (backward ? 35 : 16) * std::max(4.0, operands.bytes) : 0;
  const double score_bytes = accesses * size.visible_share * static_cast<double>(size.sequences * size.heads) *
                             static_cast<double>(size.query_tokens) * static_cast<double>(size.key_tokens);
  return model.latency_seconds + std::max(compute, bytes / memory_rate(hardware)) + score_bytes / memory_rate(hardware);
}

double kernel_seconds(const Hardware& hardware, double bytes) {
  ORTHANT_CHECK(bytes >= 0, bytes);
  return bytes == 0 ? 0.0 : hardware.memory.latency_seconds + bytes / memory_rate(hardware);
}

}  // namespace orthant
