// Tensor parallelism, the plan: one family of layouts of a linear layer's matrices on a mesh of [rows, columns, depth].
// Tokens are cut over depth and rows, widths over columns, a weight's two dims over rows and columns; depth repeats the
// weights. [1, p, 1] is Megatron-LM (Shoeybi et al. 2019, arXiv 1909.08053), with or without its sequence parallelism
// (Korthikanti et al. 2022, 2205.05198), [q, q, 1] Optimus (Xu et al. 2021, 2104.05343), [q, q, d] Tesseract (Wang et
// al. 2021, 2105.14500). What a layer sends stands in words_plan.h.
#pragma once

#include <cstdint>
#include <vector>

#include "mesh/axes.h"
#include "mesh/layout.h"

namespace orthant {

/// How the residual stream is cut over columns: by its width (the papers of more than one dimension), by tokens
/// (Megatron's sequence parallelism), or not at all.
enum class StreamCut { width, tokens, none };

/// How products move their operands: stationary leaves the largest in place and moves each other one once; summa
/// is the papers' loop over panels, where the output stays.
enum class ProductForm { stationary, summa };

struct TensorPlan {
  int rows = 1, columns = 1, depth = 1;
  StreamCut stream = StreamCut::width;
  ProductForm form = ProductForm::stationary;
  int64_t panel_bytes = 256 << 10;  // of the stream's whole width: what moves at a time is not cut smaller

  int ranks() const { return rows * columns * depth; }
};

/// Which matrix of y = x W^T stays in place. output: x is gathered over columns. input: y, a partial sum over columns,
/// is scattered. W is gathered over rows either way.
enum class Stationary { output, input };

/// How a weight [out, in] is cut.
Layout weight_layout(Stationary what);

/// A part of a matrix or of the stream on its way to the whole over one axis, or a sum back to its parts: what
/// redistribute() is asked for. Axes of other kinds stand aside: shapes are this rank's along them.
struct TensorMove {
  Layout from, to;
  std::vector<int64_t> shape;  // of the whole
};
/// The residual stream [sequences, tokens, width], gathered over columns; and summed over columns and cut.
TensorMove gather_stream(const TensorPlan& plan, std::vector<int64_t> shape);
TensorMove sum_stream(const TensorPlan& plan, std::vector<int64_t> shape);
/// What rows hold of a matrix, of which they cut one dim; and the sum over rows, cut along it.
TensorMove gather_rows(std::vector<int64_t> shape, int dim);
TensorMove sum_rows(std::vector<int64_t> shape, int dim);

/// The stream's tokens in panels, for products of which the next panel moves while the present one is multiplied. A
/// product sees [sequences, shares, tokens]: the tokens of each column's share where they are cut over columns, else
/// all as one. A panel is the same range of every share.
struct StreamPanels {
  int64_t sequences = 1, shares = 1, tokens = 0;
  std::vector<Range> panels;  // of the tokens; at least one
};
/// Of sequences x tokens of the width, where it is gathered or, with `summed`, summed over columns as well: no panel of
/// less than panel_bytes, and at most eight, of which one has nothing to hide behind.
StreamPanels stream_panels(const TensorPlan& plan, int64_t sequences, int64_t tokens, int64_t width, bool summed,
                           int64_t element_bytes);

/// A panel of SUMMA: a part of the extent that one column and one row hold; where it is, and within what they hold.
struct SummaPanel {
  Range all, in_column, in_row;
  int column, row;
};
/// A panel ends wherever a column's or a row's share does: q of them on a square mesh.
std::vector<SummaPanel> summa_panels(int64_t extent, int columns, int rows);

/// What moves less of activations, forward and backward: the input three times or the output twice.
Stationary stationary_of(int64_t in, int64_t out);

}  // namespace orthant
