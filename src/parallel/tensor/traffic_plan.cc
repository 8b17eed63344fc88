#include "parallel/tensor/traffic_plan.h"

#include <algorithm>
#include <utility>

#include "mesh/redistribute.h"
#include "parallel/tensor/key_heads_plan.h"
#include "parallel/tensor/slice_traffic_plan.h"

namespace orthant {
namespace {


// Collects the messages of one rank; messages of the same kind are one entry.
class Sender {
 public:
  Sender(const TensorPlan& plan, const TensorShape& shape, const Mesh& mesh, int rank)
      : plan_(plan), shape_(shape), mesh_(mesh), rank_(rank) {}

  std::vector<Messages> take() { return std::exchange(messages_, {}); }

  void gather_stream(const char* what, int64_t width) {
    move(what, orthant::gather_stream(plan_, stream(width)), element());
  }
  void sum_stream(const char* what, int64_t width) {
    move(what, orthant::sum_stream(plan_, stream(width)), element());
  }
  // The same moves as products make them, one for each panel.
  void gather_panels(const char* what, int64_t width, bool beside_sums = false) {
    for (const auto& shape : panels_of(width, beside_sums)) move(what, orthant::gather_stream(plan_, shape), element());
  }
  void sum_panels(const char* what, int64_t width) {
    for (const auto& shape : panels_of(width, true)) move(what, orthant::sum_stream(plan_, shape), element());
  }
  void gather_rows(const char* what, std::vector<int64_t> matrix, int dim) {
    move(what, orthant::gather_rows(std::move(matrix), dim), element());
  }
  void sum_rows(const char* what, std::vector<int64_t> matrix, int dim) {
    move(what, orthant::sum_rows(std::move(matrix), dim), shape_.sum_bytes);
  }
  // A norm over the stream. Its forward all-reduces one number a token after the other over columns, and its backward
  // all at once.
  void norm_forward() {
    for (int64_t i = 0; i < shape_.norm_statistics; ++i) sum_statistics(1);
  }
  void norm_backward() { sum_statistics(shape_.norm_statistics); }
  // One all-gather over columns of several numbers a token.
  void statistics_of_columns(const char* what, int numbers, int element_bytes) {
    Layout parts = unsharded_layout(1);
    parts.split[0] = {kColumn};
    move(what, {parts, unsharded_layout(1), {plan_.columns * shape_.sequences * shape_.tokens * numbers}},
         element_bytes);
  }
  // All-gathers over columns of the softmax statistics, one for each chunk of every panel.
  void softmax_statistics() {
    Layout parts = unsharded_layout(1);
    parts.split[0] = {kColumn};
    for (const auto& shape : panels_of(shape_.hidden, true)) {
      const int64_t all = shape[0] * shape[1];
      for (int64_t begin = 0; begin < all; begin += shape_.loss_chunk) {
        const int64_t rows = std::min(shape_.loss_chunk, all - begin);
        const int64_t numbers = plan_.columns * rows * shape_.loss_statistics;
        move("statistics of the loss", {parts, unsharded_layout(1), {numbers}}, sizeof(double));
      }
    }
  }

  // The exchange of key heads between columns: forward sends parts of this column's rows, backward gradients of the
  // parts that it received.
  void exchange_key_heads(const AttentionHeads& heads, bool is_forward) {
    const KeyHeadExchange exchange{heads, plan_.columns};
    if (heads.query == 0 || !exchange.needed()) return;
    const int column = mesh_.coord(rank_, kColumn);
    Moved numbers{exchange.sent_elements(column), exchange.received_elements(column)};
    if (!is_forward) std::swap(numbers.sent, numbers.received);
    add("key heads", name_of(CollectiveKind::all_to_all), kColumn,
        shape_.sequences * shape_.tokens * element() * numbers);
  }

  // The embedding, whose table has `table_rows` rows in this column.
  EmbeddingMove embedding(int64_t table_rows) const {
    return embedding_move(plan_, table_rows, shape_.sequences * shape_.tokens, shape_.hidden, element(),
                          shape_.sum_bytes);
  }
  void gather_token_ids() {
    move("token ids", orthant::gather_token_ids(plan_, shape_.sequences * shape_.tokens), sizeof(int64_t));
  }
  void embedding_forward(int64_t table_rows) {
    if (embedding(table_rows) == EmbeddingMove::results) {
      move("embedded tokens", results_to_tokens(plan_, shape_.sequences * shape_.tokens, shape_.hidden), element());
    } else {
      gather_rows("weights", {table_rows, shape_.hidden}, 1);
    }
    sum_stream("activations", shape_.hidden);
  }
  void embedding_backward(int64_t table_rows) {
    gather_stream("activations", shape_.hidden);
    if (embedding(table_rows) == EmbeddingMove::results) {
      move("embedded tokens", gradients_to_rows(plan_, shape_.sequences * shape_.tokens, shape_.hidden), element());
    } else {
      sum_rows("weight gradients", {table_rows, shape_.hidden}, 1);
    }
  }

  // SUMMA's loop over panels of K. The flags say whether panels of tokens and of weights are broadcast or summed.
  void panels(const char* what, int64_t K, bool tokens_move, bool weights_move, bool tokens_sum, bool weights_sum,
              int64_t weight_columns) {
    const int64_t tokens = shape_.sequences * shape_.tokens;
    for (const SummaPanel& p : summa_panels(K, plan_.columns, plan_.rows)) {
      const int64_t of_tokens = tokens * p.all.size(), of_weights = weight_columns * p.all.size();
      if (tokens_move) rooted(what, CollectiveKind::broadcast, kColumn, p.column, of_tokens, element());
      if (weights_move) rooted(what, CollectiveKind::broadcast, kRow, p.row, of_weights, element());
      if (tokens_sum) rooted(what, CollectiveKind::reduce, kColumn, p.column, of_tokens, element());
      if (weights_sum) rooted(what, CollectiveKind::reduce, kRow, p.row, of_weights, shape_.sum_bytes);
    }
  }

 private:
  struct Sent {
    CollectiveKind kind;
    std::string axis;
    Moved bytes;
  };
  struct Known {
    AxisRedistribution move;
    int element_bytes;
    std::vector<Sent> sent;
  };

  void sum_statistics(int64_t numbers) {
    if (plan_.stream != StreamSharding::width) return;
    Layout sum = unsharded_layout(1);
    sum.partial = {kColumn};
    move("statistics of norms", {sum, unsharded_layout(1), {shape_.sequences * shape_.tokens * numbers}},
         shape_.sum_bytes);
  }
  int element() const { return shape_.element_bytes; }
  std::vector<int64_t> stream(int64_t width) const { return {shape_.sequences, shape_.tokens, width}; }
  std::vector<std::vector<int64_t>> panels_of(int64_t width, bool summed) const {
    const StreamPanels all = stream_panels(plan_, shape_.sequences, shape_.tokens, width, summed, element());
    std::vector<std::vector<int64_t>> shapes;
    for (const Range& panel : all.panels) shapes.push_back({all.sequences, all.shares * panel.size(), width});
    return shapes;
  }

  void add(const char* what, std::string_view collective, const std::string& axis, const Moved& bytes) {
    if (mesh_.axis_size(axis) == 1) return;
    for (Messages& known : messages_) {
      if (known.what != what || known.collective != collective || known.axis != axis) continue;
      ++known.calls;
      known.bytes += bytes;
      return;
    }
    messages_.push_back({what, std::string(collective), axis, 1, bytes});
  }
  void move(const char* what, const AxisRedistribution& m, int element_bytes) {
    for (const Sent& sent : sent_for(m, element_bytes)) add(what, name_of(sent.kind), sent.axis, sent.bytes);
  }
  // Caches the messages of a move, because panels of one size send the same, in forward and backward.
  const std::vector<Sent>& sent_for(const AxisRedistribution& m, int element_bytes) {
    for (const Known& known : moves_) {
      const AxisRedistribution& k = known.move;
      const bool same = known.element_bytes == element_bytes && k.shape == m.shape && k.from == m.from && k.to == m.to;
      if (same) return known.sent;
    }
    std::vector<Sent> sent;
    Layout before = m.from;
    for (const Collective& step : redistribute(mesh_, m.from, m.to, m.shape, element_bytes)) {
      if (communicates(step.kind)) {
        sent.push_back({step.kind, step.axis, bytes_moved(mesh_, step, before, m.shape, element_bytes, rank_)});
      }
      before = step.after;
    }
    return moves_.emplace_back(Known{m, element_bytes, std::move(sent)}).sent;
  }
  // A broadcast from the root, or a reduce to it.
  void rooted(const char* what, CollectiveKind kind, const std::string& axis, int root, int64_t elements,
              int64_t element_bytes) {
    const int size = mesh_.axis_size(axis), place = (mesh_.coord(rank_, axis) - root + size) % size;
    const int64_t extents[] = {elements};
    add(what, name_of(kind), axis, element_bytes * elements_moved(kind, size, place, extents));
  }

  const TensorPlan& plan_;
  const TensorShape& shape_;
  const Mesh& mesh_;
  const int rank_;
  std::vector<Messages> messages_;
  std::vector<Known> moves_;
};

// y = x W^T: unsharded sizes, and the size of this column's part of the dim that columns shard.
struct Linear {
  LinearShape unsharded;
  int64_t column_part;
};
// Columns shard the rows of an output-stationary weight, and the inputs of an input-stationary one.
Linear linear_of(const ColumnOperation& product, const TensorPlan& plan, int column) {
  const LinearShape unsharded = linear_shape(product.operation);
  if (!unsharded.to_stream) return {unsharded, product.product_out};
  const bool output = stationary_of(plan, unsharded) == Stationary::output;
  return {unsharded, output ? shard(unsharded.out, plan.columns, column).size() : product.in};
}

// Messages of tensor_linear().
void forward(Sender& send, const TensorPlan& plan, const Linear& l) {
  if (plan.form == ProductForm::summa) {
    return send.panels("products", l.unsharded.in, true, true, false, false, l.column_part);
  }
  if (stationary_of(plan, l.unsharded) == Stationary::output) {
    send.gather_rows("weights", {l.column_part, l.unsharded.in}, 1);
    send.gather_panels("activations", l.unsharded.in);
  } else {
    send.gather_rows("weights", {l.unsharded.out, l.column_part}, 0);
    send.sum_panels("activations", l.unsharded.out);
  }
}

void backward(Sender& send, const TensorPlan& plan, const Linear& l) {
  if (plan.form == ProductForm::summa) {
    send.panels("products", l.unsharded.in, false, true, true, false, l.column_part);
    return send.panels("products", l.unsharded.in, true, false, false, true, l.column_part);
  }
  if (stationary_of(plan, l.unsharded) == Stationary::output) {
    send.gather_rows("weights", {l.column_part, l.unsharded.in}, 1);
    send.gather_panels("activations", l.unsharded.in, true);
    send.sum_panels("activations", l.unsharded.in);
    send.sum_rows("weight gradients", {l.column_part, l.unsharded.in}, 1);
  } else {
    send.gather_rows("weights", {l.unsharded.out, l.column_part}, 0);
    send.gather_panels("activations", l.unsharded.out);
    send.sum_rows("weight gradients", {l.unsharded.out, l.column_part}, 0);
  }
}

// The operand that W gathers again after I has gathered it for its half of backward.
void weight_gradient_alone(Sender& send, const TensorPlan& plan, const Linear& l) {
  const bool again = plan.form == ProductForm::stationary && stationary_of(plan, l.unsharded) == Stationary::input;
  if (again) send.gather_panels("activations", l.unsharded.out);
}

}  // namespace

std::vector<ColumnOperation> column_operations(const std::vector<Operation>& block, const TensorPlan& plan,
                                               int column) {
  const auto part = [&](int64_t extent) { return shard(extent, plan.columns, column).size(); };
  std::vector<ColumnOperation> operations;
  int64_t width = 0;  // of this column, of the last output that is not the stream
  for (const Operation& operation : block) {
    ColumnOperation own{.operation = operation,
                        .in = width,
                        .out = operation.out,
                        .product_out = 0,
                        .statistics = operation.statistics};
    const bool has_heads = operation.heads.query > 0;
    const AttentionHeads heads = has_heads ? heads_of_column(operation.heads, plan.columns) : AttentionHeads();
    if (operation.reads_stream()) own.in = operation.in;
    if (operation.kind == OperationKind::linear && !operation.to_stream) {
      for (const ParameterInfo& parameter : operation.parameters) {
        if (!parameter.is_bias()) own.product_out += part(parameter.shape[0]);
      }
      own.out = has_heads ? heads.elements() : own.product_out;
    } else if (operation.kind == OperationKind::linear) {
      own.product_out = operation.out;
    } else if (operation.kind == OperationKind::attention) {
      own.out = part(operation.out);
    } else if (operation.kind == OperationKind::local) {
      own.out = operation.in == operation.out ? width : part(operation.out);
      own.statistics = has_heads ? heads.query + heads.key : operation.statistics / plan.columns;
    }
    width = own.out;
    operations.push_back(std::move(own));
  }
  return operations;
}

TensorTraffic tensor_traffic(const TensorPlan& plan, const TensorShape& s, const Mesh& mesh, int rank) {
  const int column = mesh.coord(rank, kColumn);
  const auto part = [&](int64_t extent) { return shard(extent, plan.columns, column).size(); };
  Sender send(plan, s, mesh, rank);
  TensorTraffic traffic;
  const auto of_range = [&](const RecomputedRange& range, const auto& send_for_norm, const auto& send_for_linear) {
    for (size_t i = range.begin; i < range.end; ++i) {
      const ColumnOperation& own = s.block[i];
      if (own.operation.kind == OperationKind::norm) send_for_norm();
      if (own.operation.kind == OperationKind::linear) send_for_linear(own);
    }
  };
  const auto of_block = [&](const auto& send_for_norm, const auto& send_for_linear) {
    of_range({0, s.block.size()}, send_for_norm, send_for_linear);
    return send.take();
  };
  const auto run_forward = [&](const ColumnOperation& own) {
    forward(send, plan, linear_of(own, plan, column));
    send.exchange_key_heads(own.operation.heads, true);
  };
  const auto run_backward = [&](const ColumnOperation& own) {
    send.exchange_key_heads(own.operation.heads, false);
    backward(send, plan, linear_of(own, plan, column));
  };
  traffic.block_forward = of_block([&] { send.norm_forward(); }, run_forward);
  traffic.block_backward = of_block([&] { send.norm_backward(); }, run_backward);
  traffic.block_split = of_block(
      [] {}, [&](const ColumnOperation& own) { weight_gradient_alone(send, plan, linear_of(own, plan, column)); });
  for (const RecomputedRange& range : s.recomputed) {
    of_range({range.begin, range.last_product()}, [&] { send.norm_forward(); }, run_forward);
  }
  traffic.block_repeated = send.take();

  const std::vector<int64_t> table{part(s.vocabulary), s.hidden};
  const bool gathers_ids = send.embedding(table[0]) == EmbeddingMove::results;
  if (gathers_ids) send.gather_token_ids();
  send.embedding_forward(table[0]);
  traffic.embedding_forward = send.take();
  if (gathers_ids) send.gather_token_ids();
  send.embedding_backward(table[0]);
  traffic.embedding_backward = send.take();

  send.norm_forward();
  send.gather_rows("weights", table, 1);
  send.gather_panels("activations", s.hidden, true);
  send.softmax_statistics();
  send.sum_panels("activations", s.hidden);
  send.sum_rows("weight gradients", table, 1);
  traffic.loss_forward = send.take();
  send.norm_backward();
  traffic.loss_backward = send.take();
  return traffic;
}

TensorSliceTraffic slice_traffic(const TensorPlan& plan, const TensorShape& s, const TensorSlice& slice,
                                 const Mesh& mesh, int rank) {
  Sender send(plan, s, mesh, rank);
  TensorSliceTraffic traffic;
  const std::vector<int64_t> table{slice.rows, s.hidden};
  if (send.embedding(slice.rows) == EmbeddingMove::results) send.gather_token_ids();
  send.embedding_forward(slice.rows);
  send.embedding_backward(slice.rows);
  traffic.embedding = send.take();

  for (int times = slice.early ? 1 : 2; times > 0; --times) send.gather_rows("weights", table, 1);
  send.gather_stream("activations", s.hidden);
  // The naive order gathers the maxima first.
  if (slice.rounds == 2) send.statistics_of_columns("statistics of the loss", 1, s.sum_bytes);
  send.statistics_of_columns("statistics of the loss", slice.statistics - (slice.rounds - 1), s.sum_bytes);
  // Algorithm 2 sums products with exponentials, with slopes if the loss smooths, and the labels' rows. The other
  // orders sum the full gradient.
  const int sums = !slice.early ? 1 : slice.smooths ? 3 : 2;
  for (int sum = 0; sum < sums; ++sum) send.sum_stream("activations", s.hidden);
  send.sum_rows("weight gradients", table, 1);
  traffic.head = send.take();

  send.norm_forward();
  send.norm_backward();
  traffic.norm = send.take();
  return traffic;
}

}  // namespace orthant
