// Tensor parallelism, pure half: one family of layouts for the matrices of linear layers on a mesh [rows, columns,
// depth]. Depth and rows shard tokens (in the model, the batch), columns shard widths, rows and columns shard a
// weight's two dims, and depth replicates weights. [1, p, 1] is Megatron-LM (Shoeybi et al. 2019, arXiv 1909.08053),
// with or without its sequence parallelism (Korthikanti et al. 2022, 2205.05198); [q, q, 1] is Optimus (Xu et al. 2021,
// 2104.05343); [q, q, d] is Tesseract (Wang et al. 2021, 2105.14500). volume_plan.h has the volume that a layer sends.
//
// Example: mesh [2, 2, 2], a column-parallel linear layer Y = X W^T (the output is stationary) with 8 tokens, in = 4
// and out = 6. The rank number is column + 2 row + 4 depth; 0:2 means indices 0 and 1.
//
//   rank  depth row column   X [8, 4]      W [6, 4]      Y [8, 6]
//   0     0     0   0        [0:2, 0:2]    [0:3, 0:2]    [0:2, 0:3]
//   1     0     0   1        [0:2, 2:4]    [3:6, 0:2]    [0:2, 3:6]
//   2     0     1   0        [2:4, 0:2]    [0:3, 2:4]    [2:4, 0:3]
//   3     0     1   1        [2:4, 2:4]    [3:6, 2:4]    [2:4, 3:6]
//   4-7   1     as 0-3       tokens + 4    as ranks 0-3  tokens + 4
//
// Rank 0 receives X[0:2, 2:4] from rank 1 (all-gather over columns, 4 elements) and W[0:3, 2:4] from rank 2 (all-gather
// over rows, 6 elements). Its product X[0:2, :] W[0:3, :]^T is Y[0:2, 0:3], complete. A row-parallel layer follows with
// weight V [4, 6] (the input is stationary): rank 0 holds V[0:2, 0:3], gathers V[0:4, 0:3] over rows, and multiplies
// Y[0:2, 0:3] V[0:4, 0:3]^T. The sum over columns is scattered, so that rank 0 keeps [0:2, 0:2], the layout of X.
#pragma once

#include <cstdint>
#include <vector>

#include "mesh/axes.h"
#include "mesh/layout.h"

namespace orthant {

/// How columns shard the residual stream: by its width (as the 2-D and 2.5-D papers do), by tokens (Megatron's sequence
/// parallelism), or not at all.
enum class StreamSharding { width, tokens, none };

/// How products move their operands. stationary keeps the largest operand in place and moves each other operand once.
/// summa is the papers' loop over panels, which keeps the output in place.
enum class ProductForm { stationary, summa };

/// Smallest panel on CUDA devices: a collective of eight devices has a latency of about 0.1 ms, in which a device sends
/// 50 MB over NVLink.
inline constexpr int64_t kPanelBytesOnCuda = 64 << 20;

struct TensorPlan {
  int rows = 1, columns = 1, depth = 1;
  StreamSharding stream = StreamSharding::width;
  ProductForm form = ProductForm::stationary;
  int64_t panel_bytes = 2 << 20;  // smallest panel of tokens, in bytes of the stream's full width

  int ranks() const { return rows * columns * depth; }
};

/// The matrix of y = x W^T that stays in place. output (column-parallel): x is gathered over columns. input
/// (row-parallel): y is a partial sum over columns and is scattered. W is gathered over rows in both.
enum class Stationary { output, input };

/// The layout of a weight [out, in].
Layout weight_layout(Stationary what);

/// One redistribution over one axis: from shards to the unsharded tensor, or from partial sums to shards. The shape is
/// this rank's along all other axes.
struct AxisRedistribution {
  Layout from, to;
  std::vector<int64_t> shape;  // unsharded over the axis that moves
};
/// The residual stream [sequences, tokens, width]: gathered over columns; partial sums over columns summed and sharded.
AxisRedistribution gather_stream(const TensorPlan& plan, std::vector<int64_t> shape);
AxisRedistribution sum_stream(const TensorPlan& plan, std::vector<int64_t> shape);
/// A matrix that rows shard along `dim`: gathered over rows; partial sums over rows summed and sharded along it.
AxisRedistribution gather_rows(std::vector<int64_t> shape, int dim);
AxisRedistribution sum_rows(std::vector<int64_t> shape, int dim);

/// The tensor that moves over rows to look up tokens in a table that rows shard by width. table: every row gathers it.
/// results: every row looks up the tokens of all rows in its part of the width, and an all-to-all gives each row the
/// full width of its own tokens.
enum class EmbeddingMove { table, results };
/// The choice that sends fewer bytes over rows in forward and backward together. table_rows: rows of the table that the
/// column has; tokens: those of one row; element_bytes and sum_bytes: of the table, and of its gradient. Rows of one
/// column make the same choice.
EmbeddingMove embedding_move(const TensorPlan& plan, int64_t table_rows, int64_t tokens, int64_t hidden,
                             int64_t element_bytes, int64_t sum_bytes);
/// The redistributions of EmbeddingMove::results over rows, with `tokens` tokens in each row: token ids of all rows,
/// results [all tokens, width of the row] to [own tokens, full width], and gradients the other way.
AxisRedistribution gather_token_ids(const TensorPlan& plan, int64_t tokens);
AxisRedistribution results_to_tokens(const TensorPlan& plan, int64_t tokens, int64_t hidden);
AxisRedistribution gradients_to_rows(const TensorPlan& plan, int64_t tokens, int64_t hidden);

/// The stream's tokens in panels: the next panel moves while the present one is multiplied. A product views the stream
/// as [sequences, shares, tokens], with one shard for each column if columns shard tokens. Otherwise all tokens of all
/// sequences form a single row. A panel is the same range of tokens in every shard.
struct StreamPanels {
  int64_t sequences = 1, shares = 1, tokens = 0;
  std::vector<Range> panels;  // ranges of `tokens`; at least one
};
/// Panels of sequences x tokens of a width, for a product that gathers the stream and, if `summed`, sums it over
/// columns. A panel has at least panel_bytes. There are at most eight, because the first one's move is not hidden.
StreamPanels stream_panels(const TensorPlan& plan, int64_t sequences, int64_t tokens, int64_t width, bool summed,
                           int64_t element_bytes);

/// A panel of SUMMA: a range of the contracted extent that lies in one column's shard and in one row's shard. The
/// range is given in the full extent and relative to the start of each of these shards.
struct SummaPanel {
  Range all, in_column, in_row;
  int column, row;
};
/// Panels of an extent; one ends wherever a column's or a row's shard ends. A q x q mesh has q panels.
std::vector<SummaPanel> summa_panels(int64_t extent, int columns, int rows);

/// The choice that moves fewer activations in forward and backward together: the output stationary moves the input
/// three times, the input stationary moves the output twice.
Stationary stationary_of(int64_t in, int64_t out);

}  // namespace orthant
