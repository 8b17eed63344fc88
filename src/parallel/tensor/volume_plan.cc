#include "parallel/tensor/volume_plan.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "parallel/tensor/key_heads_plan.h"

namespace orthant {

TensorVolume& TensorVolume::operator+=(const TensorVolume& other) {
  forward += other.forward;
  backward += other.backward;
  depth += other.depth;
  return *this;
}

LinearShape linear_shape(const Operation& linear) {
  return {.in = linear.in, .out = linear.out, .to_stream = linear.to_stream, .heads = linear.heads};
}

std::vector<LinearShape> linear_shapes(const std::vector<Operation>& block) {
  std::vector<LinearShape> shapes;
  for (const Operation& operation : block) {
    if (operation.kind == OperationKind::linear) shapes.push_back(linear_shape(operation));
  }
  return shapes;
}

Stationary stationary_of(const TensorPlan& plan, const LinearShape& linear) {
  if (plan.form == ProductForm::summa) return Stationary::output;
  if (!linear.to_stream) return Stationary::output;
  return plan.stream == StreamSharding::width ? stationary_of(linear.in, linear.out) : Stationary::input;
}

TensorVolume count_received_elements(const TensorPlan& plan, const LinearShape& linear, double tokens, double split) {
  const double rows = plan.rows, columns = plan.columns, depth = plan.depth;
  const bool output = stationary_of(plan, linear) == Stationary::output;
  const auto width = static_cast<double>(output ? linear.in : linear.out);
  const double moved = (columns - 1) / columns * tokens * width / (depth * rows);
  const double weight = static_cast<double>(linear.in * linear.out) / (rows * columns);
  TensorVolume elements{
      .forward = (rows - 1) * weight, .backward = 2 * (rows - 1) * weight, .depth = 2 * (depth - 1) / depth * weight};
  if (plan.stream == StreamSharding::none) {  // all-reduce of the partial sum: input's gradient, or output
    (output ? elements.backward : elements.forward) += 2 * moved;
  } else {
    elements.forward += moved;
    elements.backward += (output ? 2 : 1 + split) * moved;
  }
  const KeyHeadExchange exchange{linear.heads, plan.columns};
  // A mesh whose columns do not divide the query heads is refused. Its volume is listed without an exchange.
  const bool is_legal = linear.heads.query > 0 && linear.heads.query % plan.columns == 0;
  if (is_legal && exchange.needed()) {
    double received = 0;
    for (int column = 0; column < plan.columns; ++column) {
      received += static_cast<double>(exchange.received_elements(column)) / columns;
    }
    elements.forward += tokens / (depth * rows) * received;
    elements.backward += tokens / (depth * rows) * received;
  }
  return elements;
}

TensorVolume count_received_elements(const TensorPlan& plan, std::span<const LinearShape> linears, double tokens,
                                     double split) {
  TensorVolume sum;
  for (const LinearShape& linear : linears) sum += count_received_elements(plan, linear, tokens, split);
  return sum;
}

double product_bound(double m, double n, double k, int ranks) {
  std::array<double, 3> sides{m, n, k};
  std::sort(sides.begin(), sides.end(), std::greater<>());
  const auto [large, middle, small] = sides;
  const double p = ranks;
  double read = 0;
  if (p <= large / middle) {
    read = (large * middle + large * small) / p + middle * small;
  } else if (p <= large * middle / (small * small)) {
    read = 2 * std::sqrt(large * middle * small * small / p) + large * middle / p;
  } else {
    read = 3 * std::pow(large * middle * small / p, 2.0 / 3);
  }
  return read - (m * n + m * k + n * k) / p;
}

std::vector<TensorPlan> tensor_arrangements(int ranks) {
  std::vector<TensorPlan> all;
  for (const StreamSharding cut : {StreamSharding::tokens, StreamSharding::none}) {
    all.push_back({.rows = 1, .columns = ranks, .depth = 1, .stream = cut});
  }
  for (int depth = 1; depth <= ranks; ++depth) {
    for (int rows = 1; depth * rows <= ranks; ++rows) {
      if (ranks % (depth * rows) == 0) all.push_back({.rows = rows, .columns = ranks / depth / rows, .depth = depth});
    }
  }
  return all;
}

}  // namespace orthant
