#include "parallel/tensor/memory_plan.h"

#include <algorithm>

#include "mesh/staging.h"
#include "parallel/tensor/key_heads_plan.h"
#include "parallel/tensor/volume_plan.h"

namespace orthant {
namespace {

int64_t share(int64_t all, int64_t of) { return (all + of - 1) / of; }
int64_t round_up(int64_t count, int64_t block) { return share(count, block) * block; }

// Temporary bytes of a weight that has `elements` elements in all rows together; 0 on a mesh of one row.
struct Rows {
  Rows(const TensorPlan& plan, const TensorShape& s, int64_t elements, Stationary stationary) {
    if (plan.rows == 1) return;
    gathered = elements * s.element_bytes;
    by_rows = stationary == Stationary::output ? gathered : 0;
    sum = elements * s.sum_bytes;
    const int64_t part = share(sum, plan.rows);
    summing =
        (stationary == Stationary::output ? sum : 0) + part + reduction_buffer_bytes(part, plan.rows, s.over_nccl);
  }
  int64_t gathered = 0, sum = 0;
  int64_t by_rows = 0;   // receive buffer ordered by row, until it is one matrix; 0 if it already is
  int64_t summing = 0;  // the sum's copy ordered by row (if it is not), this row's shard, other rows' summands
};

// Bytes of the residual stream, or of a tensor of another width that is sharded like it: of all tokens, and of the
// buffers that a panel of tokens takes while it moves.
struct Stream {
  Stream(const TensorPlan& plan, const TensorShape& s, int64_t width) {
    const int64_t whole = s.sequences * s.tokens * width * s.element_bytes;
    const bool cut = plan.columns > 1 && plan.stream != StreamSharding::none;
    part = cut ? share(whole, plan.columns) : whole;
    const StreamPanels stream = stream_panels(plan, s.sequences, s.tokens, width, true, s.element_bytes);
    panels = static_cast<int64_t>(stream.panels.size());
    tokens = stream.tokens;
    of_largest = stream.panels.front().size();
    panel = in_panel(whole);
    by_tokens = plan.stream == StreamSharding::tokens && panels > 1;
    if (plan.columns == 1) return;
    gathered = cut ? panel : 0;
    leaving = by_tokens && s.sequences > 1 ? in_panel(part) : 0;
    summing = (cut ? panel : 0) + in_panel(part) +
              reduction_buffer_bytes(share(panel, plan.columns), plan.columns, s.over_nccl);
  }

  // Bytes of the largest panel, given those of all tokens.
  int64_t in_panel(int64_t all) const { return panels == 1 ? all : all / tokens * of_largest; }
  // Bytes of a copy of an operand's panel, which is not contiguous if columns shard the tokens.
  int64_t side_by_side(int64_t operand) const { return by_tokens ? in_panel(operand) : 0; }
  // The result of the sum over columns, from panels that are summed or on their way.
  int64_t summed() const { return panels > 1 || summing == 0 ? part : 0; }

  // Gathered panels: the present one, and the next on its way.
  int64_t arrived() const { return panels > 1 ? 2 * gathered + leaving : gathered; }

  // Peak of a product that reads the gathered stream, its result included.
  int64_t gather_and_multiply(int64_t result, const Rows& rows) const {
    const int64_t work = std::max(rows.by_rows, result + side_by_side(result));
    return rows.gathered + std::max(2 * gathered, arrived() + work);
  }
  // Peak of a product that is summed into the stream. read: bytes of its operand.
  int64_t multiply_and_sum(int64_t read, const Rows& rows) const {
    const int64_t work = summed() + summing + (summing > 0 ? panel : 0) + side_by_side(read);
    return rows.gathered + std::max(rows.by_rows, work);
  }
  // Peak of a weight's gradient. read: bytes of the operand that is not the stream, of all tokens.
  int64_t weight_gradient(int64_t read, const Rows& rows) const {
    const int64_t first = 2 * gathered + side_by_side(read), next = arrived() + side_by_side(read) + rows.sum;
    return std::max({first, next, rows.sum + rows.summing});
  }

  // All passes of a product that reads the stream and makes y bytes; and of one that reads x bytes and is summed into
  // the stream.
  ProductBytes from_stream(int64_t y, const Rows& rows) const {
    const int64_t product = summing > 0 ? panel : 0;
    const int64_t panel_work =
        gathered + leaving + side_by_side(y) + (panels > 1 ? product + rows.sum : std::max(product, rows.sum));
    return {.forward = gather_and_multiply(y, rows),
            .backward = summed() + summing + rows.gathered + std::max(panel_work, rows.sum + rows.summing),
            .for_input = multiply_and_sum(y, rows),
            .for_weights = weight_gradient(y, rows)};
  }
  ProductBytes into_stream(int64_t x, const Rows& rows) const {
    const int64_t panel_work = arrived() + side_by_side(x);
    return {.forward = multiply_and_sum(x, rows),
            .backward = std::max(2 * gathered, x + rows.gathered + rows.sum + std::max(panel_work, rows.summing)),
            .for_input = gather_and_multiply(x, rows),
            .for_weights = weight_gradient(x, rows)};
  }
  // Peak of the loss: a gathered panel, its gradient and its logits; the next panel on its way; the sum of the panel
  // before. The result of finished sums is added from the third panel on; at the second, only once its logits are
  // freed.
  int64_t loss(int64_t logits, const Rows& rows) const {
    const int64_t one = gathered + panel, next = gathered + leaving;
    const int64_t work = panels == 1   ? one + std::max(logits, summing)
                         : panels == 2 ? one + std::max(logits + std::max(next, summing), part + summing)
                         : panels == 3 ? one + summing + std::max(next + std::max(logits, part), part + logits)
                                       : part + one + next + logits + summing;
    return rows.gathered + rows.sum + std::max(work, summed() + summing + rows.summing);
  }

  int64_t part = 0;      // this rank's shard, of all tokens
  int64_t panels = 1, tokens = 0, of_largest = 0;
  int64_t panel = 0;     // the largest panel, of all columns
  int64_t gathered = 0;  // buffer of a gathered panel; 0 if columns do not shard the stream
  int64_t leaving = 0;   // contiguous copy of this rank's shard of a panel, to be sent
  int64_t summing = 0;  // sum of a panel over columns: a copy ordered by column, the own shard, others' summands
  bool by_tokens = false;
};

// Panels of x and of W in a product y = x W^T of the papers' form. `in` is unsharded, `out` is this column's.
struct SummaPanels {
  SummaPanels(const TensorPlan& plan, const TensorShape& s, int64_t in, int64_t out) : tokens(s.sequences * s.tokens) {
    const auto all = summa_panels(in, plan.columns, plan.rows);
    panels = static_cast<int64_t>(all.size());
    for (const SummaPanel& panel : all) width = std::max(width, panel.all.size());
    of_x = tokens * width * s.element_bytes;
    of_w = plan.rows > 1 ? width * out * s.element_bytes : 0;
    // A panel that is a column's full shard is sent from its own memory. With one column it is read there.
    const bool in_place = width == share(in, plan.columns) || plan.columns == 1;
    arrived = in_place ? std::min(2, plan.columns - 1) * of_x : 2 * of_x;
  }
  int64_t tokens = 0, panels = 0, width = 0;
  int64_t of_x = 0, of_w = 0;  // bytes of the widest panel; of_w is 0 with one row, which sends none
  int64_t arrived = 0;         // panels of x: the present one and the next
};

// A product y = x W^T in the papers' form, which accumulates in float32 or float64.
ProductBytes summa(const TensorPlan& plan, const TensorShape& s, int64_t in, int64_t out) {
  const SummaPanels p(plan, s, in, out);
  const int64_t moving = p.arrived + std::min<int64_t>(2, p.panels) * p.of_w;
  const int64_t rounded = s.sum_bytes > s.element_bytes ? p.tokens * out * s.element_bytes : 0;
  const int64_t of_dw = p.width * out * s.sum_bytes, dx = p.tokens * share(in, plan.columns) * s.element_bytes;
  const int64_t next = p.panels > 2 ? p.of_w : 0;
  const int64_t of_input =
      p.of_w + p.of_x + std::max(p.of_w, next + p.of_x + reduction_buffer_bytes(p.of_x, plan.columns, s.over_nccl));
  const int64_t of_weight = share(in, plan.rows) * out * s.sum_bytes + p.arrived + 2 * of_dw +
                            reduction_buffer_bytes(of_dw, plan.rows, s.over_nccl);
  return {.forward = p.tokens * out * s.sum_bytes + std::max(moving, rounded),
          .backward = dx + std::max(of_input, of_weight),
          .for_input = dx + of_input,
          .for_weights = of_weight};
}

// The embedding: each column looks up its rows of the table for all tokens, and the results are summed over columns. In
// backward, one column's rows may be those of all tokens.
ProductBytes embedding(const TensorPlan& plan, const TensorShape& s) {
  const int64_t elements = s.sequences * s.tokens * s.hidden, whole = elements * s.element_bytes;
  const int64_t wide = elements * s.sum_bytes, narrow = wide > whole ? whole : 0;
  if (plan.rows * plan.columns == 1) return {.forward = whole, .backward = narrow > 0 ? wide : 0};
  constexpr int64_t kIdBytes = sizeof(int64_t);
  const int64_t tokens = s.sequences * s.tokens, table_rows = share(s.vocabulary, plan.columns);
  const int64_t found = 2 * tokens * kIdBytes;  // indices and rows
  const Rows table(plan, s, table_rows * s.hidden, Stationary::output);
  const bool cut = plan.columns > 1 && plan.stream != StreamSharding::none;
  const int64_t gathered = cut ? whole : 0, part = share(whole, plan.columns);
  const int64_t summing =
      plan.columns > 1 ? gathered + (cut ? part : whole) + reduction_buffer_bytes(part, plan.columns, s.over_nccl) : 0;
  if (embedding_move(plan, table_rows, tokens, s.hidden, s.element_bytes, s.sum_bytes) == EmbeddingMove::results) {
    // Ids, indices and rows of the tokens of all rows of the mesh. The results of all of these in the row's part of the
    // width are as large as those of its own tokens. They leave and arrive; in forward they are then joined.
    const int64_t ids = plan.rows * tokens * kIdBytes + plan.rows * found;
    const int64_t in_width = plan.rows * tokens * share(s.hidden, plan.rows), moved = in_width * s.element_bytes;
    return {.forward = ids + std::max({2 * moved, moved + 2 * whole, whole + summing}),
            .backward = ids + std::max({2 * gathered, gathered + whole + moved,
                                        moved + (narrow > 0 ? moved : 0) + in_width * s.sum_bytes})};
  }
  return {.forward = table.gathered + found + std::max({table.by_rows, 2 * whole, whole + summing}),
          .backward = gathered + found + std::max({gathered, narrow + wide, wide + table.sum + table.summing})};
}

// Adds the exchange of key heads after a product's forward and before its backward. The columns of a mesh send and
// receive different numbers of elements; the largest stand for all.
void add_exchange(ProductBytes& product, const TensorShape& s, const ColumnOperation& own,
                  const KeyHeadExchange& exchange) {
  const int64_t tokens = s.sequences * s.tokens, e = s.element_bytes;
  int64_t sent = 0, received = 0, rows = 0, distinct = 0;
  for (int column = 0; column < exchange.columns; ++column) {
    sent = std::max(sent, exchange.sent_elements(column));
    received = std::max(received, exchange.received_elements(column));
    rows = std::max(rows, 2 * exchange.rows_of(column).size());
    const int64_t heads = exchange.read_by(column).size();
    const bool repeats = heads != heads_of_column(exchange.all, exchange.columns).key;
    distinct = std::max(distinct, repeats ? 2 * heads * exchange.all.head_dim : 0);
  }
  const int64_t before = own.product_out * e, after = own.out * e;
  product.forward =
      std::max(product.forward, tokens * (before + std::max((sent + received) * e, received * e + after)));
  const int64_t work =
      tokens * (distinct * s.sum_bytes + std::max((sent + received) * e, sent * e + rows * s.sum_bytes + before));
  product.backward = std::max(work, product.backward + tokens * before);
  product.for_input = std::max(work, product.for_input + tokens * before);
}

}  // namespace

ProductMemory product_memory(const TensorPlan& plan, const TensorShape& s) {
  const Stream z(plan, s, s.hidden);
  const int64_t tokens = s.sequences * s.tokens, row = tokens * s.element_bytes;
  const bool papers = plan.form == ProductForm::summa;
  const auto from_stream = [&](int64_t rows) {
    return papers ? summa(plan, s, s.hidden, rows)
                  : z.from_stream(row * rows, {plan, s, rows * s.hidden, Stationary::output});
  };
  const int64_t width = share(s.hidden, plan.columns);
  const auto into_stream = [&](int64_t in, int64_t columns_in) {
    if (papers) return summa(plan, s, in, width);
    if (stationary_of(plan, {.in = in, .out = s.hidden, .to_stream = true}) == Stationary::output) {
      return Stream(plan, s, in).from_stream(row * width, {plan, s, width * in, Stationary::output});
    }
    return z.into_stream(row * columns_in, {plan, s, s.hidden * columns_in, Stationary::input});
  };
  // Logits, their losses and the statistics of all columns, the last two in float64. Before these, libtorch on a CPU
  // transposes a copy of a bfloat16 table, in blocks of 64 rows and 32 columns.
  const int64_t vocabulary = share(s.vocabulary, plan.columns), chunk = std::min(z.in_panel(tokens), s.loss_chunk);
  const int64_t turned =
      s.element_bytes == 2 && !s.on_gpu ? round_up(vocabulary, 64) * round_up(s.hidden, 32) * s.element_bytes : 0;
  const int64_t statistics =
      plan.rows * plan.columns > 1 ? chunk * plan.columns * s.loss_statistics * int64_t{sizeof(double)} : 0;
  const int64_t losses = chunk * int64_t{sizeof(double)};
  const int64_t logits = chunk * vocabulary * s.element_bytes + std::max(statistics, turned) + losses;
  ProductMemory memory{.stream = z.part,
                       .linears = {},
                       .embedding = embedding(plan, s),
                       .loss = z.loss(logits, {plan, s, vocabulary * s.hidden, Stationary::output})};
  for (const ColumnOperation& own : s.block) {
    if (own.operation.kind != OperationKind::linear) continue;
    memory.linears.push_back(own.operation.to_stream ? into_stream(own.operation.in, own.in)
                                                     : from_stream(own.product_out));
    const KeyHeadExchange exchange{own.operation.heads, plan.columns};
    if (own.operation.heads.query > 0 && exchange.needed()) add_exchange(memory.linears.back(), s, own, exchange);
  }
  return memory;
}

}  // namespace orthant
