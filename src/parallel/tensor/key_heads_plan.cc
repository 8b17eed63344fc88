#include "parallel/tensor/key_heads_plan.h"

#include <algorithm>

#include "base/errors.h"

namespace orthant {

AttentionHeads heads_of_column(const AttentionHeads& all, int columns) {
  ORTHANT_CHECK(columns > 0 && all.query % columns == 0 && all.key > 0 && all.query % all.key == 0, columns, all.query,
                all.key);
  AttentionHeads own{.query = all.query / columns, .key = all.query / columns, .head_dim = all.head_dim};
  if (all.key % columns == 0) own.key = all.key / columns;
  if (columns % all.key == 0) own.key = 1;
  return own;
}

int64_t KeyHeadExchange::key_head(int column, int64_t index) const {
  const AttentionHeads own = heads_of_column(all, columns);
  const int64_t query_head = column * own.query + index * (own.query / own.key);
  return query_head / (all.query / all.key);
}

Range KeyHeadExchange::read_by(int column) const {
  const int64_t last = heads_of_column(all, columns).key - 1;
  return {key_head(column, 0), key_head(column, last) + 1};
}

Range KeyHeadExchange::rows_of(int column) const { return shard(all.key * all.head_dim, columns, column); }

Range KeyHeadExchange::sent(int from, int to) const {
  const Range rows = rows_of(from), read = read_by(to);
  const int64_t begin = std::max(rows.begin, read.begin * all.head_dim),
                end = std::min(rows.end, read.end * all.head_dim);
  return {begin, std::max(begin, end)};
}

int64_t KeyHeadExchange::sent_elements(int column) const {
  int64_t rows = 0;
  for (int to = 0; to < columns; ++to) rows += to == column ? 0 : sent(column, to).size();
  return 2 * rows;
}

int64_t KeyHeadExchange::received_elements(int column) const {
  int64_t rows = 0;
  for (int from = 0; from < columns; ++from) rows += from == column ? 0 : sent(from, column).size();
  return 2 * rows;
}

}  // namespace orthant
