#include "parallel/tensor/plan.h"

#include <algorithm>

namespace orthant {

namespace {

constexpr int kTokenDim = 1, kWidthDim = 2;

Layout cut(int dims, int dim, const std::string& axis) {
  Layout layout = unsharded_layout(dims);
  if (dim >= 0) layout.split[static_cast<size_t>(dim)] = {axis};
  return layout;
}
Layout copies(int dims, const std::string& axis) {
  Layout layout = unsharded_layout(dims);
  layout.replicated = {axis};
  return layout;
}
Layout summands(int dims, const std::string& axis) {
  Layout layout = unsharded_layout(dims);
  layout.partial = {axis};
  return layout;
}

Layout stream(StreamSharding how) {
  return cut(3, how == StreamSharding::width ? kWidthDim : how == StreamSharding::tokens ? kTokenDim : -1, kColumn);
}

}  // namespace

AxisRedistribution gather_stream(const TensorPlan& plan, std::vector<int64_t> shape) {
  return {stream(plan.stream), copies(3, kColumn), std::move(shape)};
}
AxisRedistribution sum_stream(const TensorPlan& plan, std::vector<int64_t> shape) {
  return {summands(3, kColumn), stream(plan.stream), std::move(shape)};
}
AxisRedistribution gather_rows(std::vector<int64_t> shape, int dim) {
  return {cut(2, dim, kRow), copies(2, kRow), std::move(shape)};
}
AxisRedistribution sum_rows(std::vector<int64_t> shape, int dim) {
  return {summands(2, kRow), cut(2, dim, kRow), std::move(shape)};
}

EmbeddingMove embedding_move(const TensorPlan& plan, int64_t table_rows, int64_t tokens, int64_t hidden,
                             int64_t element_bytes, int64_t sum_bytes) {
  if (plan.rows == 1) return EmbeddingMove::table;
  // Bytes that a rank sends, times rows / (rows - 1).
  const double table = static_cast<double>(table_rows * hidden) * static_cast<double>(element_bytes + sum_bytes);
  const double ids = static_cast<double>(plan.rows) * sizeof(int64_t);
  const double results = 2 * static_cast<double>(tokens) * (static_cast<double>(hidden * element_bytes) + ids);
  return results < table ? EmbeddingMove::results : EmbeddingMove::table;
}

AxisRedistribution gather_token_ids(const TensorPlan& plan, int64_t tokens) {
  return {cut(1, 0, kRow), copies(1, kRow), {plan.rows * tokens}};
}
AxisRedistribution results_to_tokens(const TensorPlan& plan, int64_t tokens, int64_t hidden) {
  return {cut(2, 1, kRow), cut(2, 0, kRow), {plan.rows * tokens, hidden}};
}
AxisRedistribution gradients_to_rows(const TensorPlan& plan, int64_t tokens, int64_t hidden) {
  return {cut(2, 0, kRow), cut(2, 1, kRow), {plan.rows * tokens, hidden}};
}

StreamPanels stream_panels(const TensorPlan& plan, int64_t sequences, int64_t tokens, int64_t width, bool summed,
                           int64_t element_bytes) {
  constexpr int64_t kMostPanels = 8;
  StreamPanels stream{.tokens = sequences * tokens, .panels = {}};
  if (plan.stream == StreamSharding::tokens) {
    stream = {.sequences = sequences, .shares = plan.columns, .tokens = tokens / plan.columns, .panels = {}};
  }
  const bool moves = plan.columns > 1 && (summed || plan.stream != StreamSharding::none);
  const int64_t fit = std::min(stream.tokens, sequences * tokens * width * element_bytes / plan.panel_bytes);
  const auto count = static_cast<int>(moves ? std::clamp<int64_t>(fit, 1, kMostPanels) : 1);
  for (int i = 0; i < count; ++i) stream.panels.push_back(shard(stream.tokens, count, i));
  return stream;
}

std::vector<SummaPanel> summa_panels(int64_t extent, int columns, int rows) {
  std::vector<SummaPanel> panels;
  for (int column = 0, row = 0; column < columns && row < rows;) {
    const Range of_column = shard(extent, columns, column), of_row = shard(extent, rows, row);
    const Range both{std::max(of_column.begin, of_row.begin), std::min(of_column.end, of_row.end)};
    const auto within = [&](const Range& share) { return Range{both.begin - share.begin, both.end - share.begin}; };
    if (both.size() > 0) panels.push_back({both, within(of_column), within(of_row), column, row});
    if (of_column.end <= of_row.end) ++column;
    if (of_row.end <= of_column.end) ++row;
  }
  return panels;
}

Layout weight_layout(Stationary what) {
  Layout layout = unsharded_layout(2);
  layout.split[what == Stationary::output ? 0 : 1] = {kColumn};
  layout.split[what == Stationary::output ? 1 : 0] = {kRow};
  return layout;
}

Stationary stationary_of(int64_t in, int64_t out) { return 3 * in <= 2 * out ? Stationary::output : Stationary::input; }

}  // namespace orthant
