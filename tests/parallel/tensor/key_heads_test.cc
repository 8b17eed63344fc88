// Key heads that several columns read: the rows of each column, the parts that it receives, and the backward of the
// exchange, which is its transpose. The control leaves out what other columns send.
#include "parallel/tensor/key_heads.h"

#include <gtest/gtest.h>

#include "tests/parallel/tensor/matrices.h"
#include "tests/support/reference_values.h"

namespace orthant::key_heads_test {
namespace {

TEST(KeyHeads, OfColumnsByHand) {
  const auto heads = [](int64_t query, int64_t key, int columns) {
    const AttentionHeads own = heads_of_column({query, key, 6}, columns);
    return std::pair(own.query, own.key);
  };
  using P = std::pair<int64_t, int64_t>;
  EXPECT_EQ(heads(8, 4, 2), P(4, 2));  // columns divide the key heads
  EXPECT_EQ(heads(8, 2, 4), P(2, 1));  // two columns read each key head
  EXPECT_EQ(heads(6, 3, 2), P(3, 3));  // a group ends inside a column: one key head for each query head
  // The examples of key_heads_plan.h, with D = 6.
  const KeyHeadExchange shared{{8, 2, 6}, 4}, split{{6, 3, 6}, 2};
  EXPECT_FALSE((KeyHeadExchange{{8, 4, 6}, 2}.needed()));
  EXPECT_EQ(shared.rows_of(1), (Range{3, 6}));
  EXPECT_EQ(shared.read_by(1), (Range{0, 1}));
  EXPECT_EQ(shared.sent(0, 1), (Range{0, 3}));
  EXPECT_EQ(shared.sent(0, 2).size(), 0);
  EXPECT_EQ(shared.sent_elements(0), 2 * 3);
  EXPECT_EQ(shared.received_elements(0), 2 * 3);
  EXPECT_EQ((std::array{split.key_head(0, 0), split.key_head(0, 1), split.key_head(0, 2)}),
            (std::array<int64_t, 3>{0, 0, 1}));
  EXPECT_EQ((std::array{split.key_head(1, 0), split.key_head(1, 1), split.key_head(1, 2)}),
            (std::array<int64_t, 3>{1, 2, 2}));
  EXPECT_EQ(split.sent(0, 1), (Range{6, 9}));
  EXPECT_EQ(split.sent(1, 0), (Range{9, 12}));
}

// <receive(x), y> = <x, return(y)>, summed over columns, for every number of columns and heads.
TEST(KeyHeads, ReturnIsTheTransposeOfReceive) {
  for (const auto& [query, key, columns] :
       {std::array{8, 2, 4}, {6, 3, 2}, {4, 1, 4}, {12, 6, 4}, {12, 4, 6}, {5, 1, 5}}) {
    const AttentionHeads all{query, key, 6};
    const AttentionHeads own = heads_of_column(all, columns);
    double received = 0, returned = 0, received_alone = 0;
    std::mutex mutex;
    on_mesh(tensor_mesh(1, columns, 1), [&](Comm& comm) {
      const TensorMesh mesh(comm, {.columns = static_cast<int>(comm.group_size(kColumns))});
      const KeyHeadExchange plan{all, mesh.plan().columns};
      const int64_t rows = own.query * 6 + 2 * plan.rows_of(mesh.column()).size();
      const at::Tensor x = reference_values({2, 3, rows}, 10 + mesh.column());
      const at::Tensor y = reference_values({2, 3, own.elements()}, 50 + mesh.column());
      const at::Tensor heads = receive_key_heads(mesh, all, x), sums = return_key_heads(mesh, all, y);
      // Without the rows of other columns.
      const at::Tensor alone = receive_key_heads(mesh, all, mesh.column() == 0 ? x : at::zeros_like(x));
      const std::lock_guard lock(mutex);
      received += (heads * y).sum().item<double>();
      returned += (x * sums).sum().item<double>();
      if (mesh.column() == 0) received_alone += (alone * y).sum().item<double>();
    });
    EXPECT_NEAR(received, returned, 1e-12 * std::abs(received)) << query << "/" << key << " on " << columns;
    EXPECT_GT(std::abs(received_alone - returned), 1e-3) << query << "/" << key << " on " << columns;
  }
}

}  // namespace
}  // namespace orthant::key_heads_test
