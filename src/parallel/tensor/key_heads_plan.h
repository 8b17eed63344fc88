// Heads of attention on the columns of a tensor mesh. Columns shard the query heads, and the rows of the weights of
// keys and values, evenly. If columns do not divide the key heads, a column's rows are not the key heads that its query
// heads read. The columns then exchange parts of keys and values after the product: an all-to-all over columns.
// Backward sends the gradients back, and the column that has the rows adds them up. No weight is replicated.
//
// Example: 8 query heads and 2 key heads of D elements on 4 columns.
//
//   column   query heads   rows of keys       key head that it reads   receives
//   0        0, 1          head 0, 1st half   0                        2nd half of head 0 from column 1
//   1        2, 3          head 0, 2nd half   0                        1st half of head 0 from column 0
//   2        4, 5          head 1, 1st half   1                        2nd half of head 1 from column 3
//   3        6, 7          head 1, 2nd half   1                        1st half of head 1 from column 2
//
// With 6 query heads and 3 key heads on 2 columns, column 0 reads the key heads 0, 0, 1 and column 1 reads 1, 2, 2:
// such columns have one key head for every query head, because their query heads end in the middle of a group.
#pragma once

#include <cstdint>

#include "mesh/mesh.h"
#include "model/block_plan.h"

namespace orthant {

/// The heads of attention on one column; they are as many on every column. `columns` must divide the query heads.
AttentionHeads heads_of_column(const AttentionHeads& all, int columns);

/// Keys and values of one layer, and the columns that exchange parts of them.
struct KeyHeadExchange {
  AttentionHeads all;
  int columns = 1;

  /// False if columns divide the key heads: every column then has the key heads that it reads.
  bool needed() const { return all.key % columns != 0; }
  /// The key head that attention on this column has at `index`.
  int64_t key_head(int column, int64_t index) const;
  /// The key heads that the column's query heads read, each once.
  Range read_by(int column) const;
  /// The rows of the keys' weight that the column has, of all.key x head_dim rows.
  Range rows_of(int column) const;
  /// The rows of `from` that belong to key heads that `to` reads.
  Range sent(int from, int to) const;
  /// Elements of a token, keys and values together, that the column sends to other columns in forward and receives from
  /// them. Backward sends the number that forward receives.
  int64_t sent_elements(int column) const;
  int64_t received_elements(int column) const;
};

}  // namespace orthant
