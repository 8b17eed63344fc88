// The three products of tensor parallelism on every mesh: equal bits for integer matrices, rounding errors of bfloat16,
// and the elements received and calls of the formulas. The controls drop the sum over depth or misplace ranks.
#include "parallel/tensor/products.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>

#include "base/errors.h"
#include "comm/redistribute.h"
#include "tests/parallel/tensor/matrices.h"
#include "tests/support/reference_values.h"
#include "tests/support/relative_error.h"
#include "tests/support/sweep.h"

namespace orthant::products_test {
namespace {

struct MeshCase {
  int rows, columns, depth;
  ProductForm form = ProductForm::stationary;
};
std::string name_of(const MeshCase& c) {
  return std::to_string(c.rows) + "x" + std::to_string(c.columns) + "x" + std::to_string(c.depth) +
         (c.form == ProductForm::summa ? " summa" : "");
}

std::vector<MeshCase> all_meshes() {
  std::vector<MeshCase> all;
  for (const auto form : {ProductForm::stationary, ProductForm::summa}) {
    for (const auto& [r, c, d] : std::vector<std::array<int, 3>>{
             {1, 1, 1}, {2, 2, 1}, {2, 2, 2}, {3, 3, 1}, {3, 3, 2}, {4, 4, 1}, {2, 2, 3}, {2, 2, 4}, {2, 3, 2},
             {3, 2, 1}, {1, 4, 2}, {4, 1, 2}, {1, 1, 4}, {6, 2, 1}, {5, 3, 1}}) {
      all.push_back({r, c, d, form});
    }
  }
  return all;
}

// This rank's shards of y, dx and dw. dw_of_layer is dw before the sum over depth.
struct Products {
  at::Tensor y, dx, dw_of_layer, dw;
};
Products products_on(Comm& comm, ProductForm form, const Matrices& m) {
  const TensorProducts products(comm, form, 1);  // panel_bytes = 1: several panels; volume tests use one
  const int64_t K = m.x_TK.size(1);
  const at::Tensor x = tokens_part(comm, m.x_TK), w = weight_part(comm, m.w_KN), dy = tokens_part(comm, m.dy_TN);
  Products p{products.ab(x, w, K), products.abt(dy, w, K), products.atb(x, dy, K), {}};
  p.dw = p.dw_of_layer.clone();
  comm.all_reduce(p.dw, kDepths).wait();
  return p;
}

// The published checksums: sum, sum of squares, and the sum weighted by (row + 1) (column + 1).
std::array<double, 3> sums_of(const at::Tensor& t) {
  const at::Tensor d = t.to(at::kDouble);
  const at::Tensor weights = at::arange(1, d.size(0) + 1).view({-1, 1}) * at::arange(1, d.size(1) + 1).view({1, -1});
  return {d.sum().item<double>(), d.square().sum().item<double>(), (d * weights).sum().item<double>()};
}

TEST(TensorProducts, OfOneRankHaveTheReferenceValues) {
  const auto check = [](const Matrices& m, std::array<double, 3> y, std::array<double, 3> dx,
                        std::array<double, 3> dw) {
    EXPECT_EQ(sums_of(m.x_TK.mm(m.w_KN)), y);
    EXPECT_EQ(sums_of(m.dy_TN.mm(m.w_KN.t())), dx);
    EXPECT_EQ(sums_of(m.x_TK.t().mm(m.dy_TN)), dw);
  };
  check(exact_matrices(48, 12, 24), {13, 88291, 3675}, {0, 5952, -976}, {0, 4720, 640});
  check(exact_matrices(50, 13, 22), {-8, 93870, -3682}, {-3, 7067, -68}, {5, 3545, -112});
}

// The example of products.h gives the product of one device. Gathering a shard restores the matrix, for divisible and
// indivisible sizes (Tensor Parallelism, check C2).
TEST(TensorProducts, ExampleOfAWholeProduct) {
  for (const auto& [T, K, N] : {std::array<int64_t, 3>{48, 12, 24}, {50, 13, 22}}) {
    const Matrices m = exact_matrices(T, K, N);
    on_mesh(tensor_mesh(2, 3, 2), [&](Comm& comm) {
      const at::Tensor x = redistribute(comm, m.x_TK, unsharded_layout(2), token_matrix(), {T, K}),
                       w = redistribute(comm, m.w_KN, unsharded_layout(2), weight_matrix(), {K, N});
      EXPECT_TRUE(redistribute(comm, x, token_matrix(), unsharded_layout(2), {T, K}).equal(m.x_TK));
      EXPECT_TRUE(redistribute(comm, w, weight_matrix(), unsharded_layout(2), {K, N}).equal(m.w_KN));
      const at::Tensor y = TensorProducts(comm, ProductForm::stationary).ab(x, w, K);
      EXPECT_TRUE(redistribute(comm, y, token_matrix(), unsharded_layout(2), {T, N}).equal(m.x_TK.mm(m.w_KN)));
    });
  }
}

SWEEP_TEST(TensorProducts, AreBitEqualToOneRanks) {
  for (const auto& [T, K, N] : {std::array<int64_t, 3>{48, 12, 24}, {50, 13, 22}}) {
    for (const MeshCase& c : sweep.of(all_meshes(), 15)) {
      on_mesh(tensor_mesh(c.rows, c.columns, c.depth), [&](Comm& comm) {
        for (const auto type : {at::kDouble, at::kFloat, at::kBFloat16}) {
          const Matrices m = exact_matrices(T, K, N, type);
          const Products p = products_on(comm, c.form, m);
          const at::Tensor dw = m.x_TK.to(at::kDouble).t().mm(m.dy_TN.to(at::kDouble));
          EXPECT_TRUE(p.y.equal(tokens_part(comm, m.x_TK.mm(m.w_KN)))) << name_of(c) << type;
          EXPECT_TRUE(p.dx.equal(tokens_part(comm, m.dy_TN.mm(m.w_KN.t())))) << name_of(c) << type;
          EXPECT_TRUE(p.dw.to(at::kDouble).equal(weight_part(comm, dw))) << name_of(c) << type;
        }
      });
    }
  }
}

// Products of bfloat16 accumulate in float32, also if the operands are views of wider matrices. The bound is 1,024
// additions of 2^-24 each; a single rounding to bfloat16 would be 2^-9.
TEST(TensorProducts, OfViewsAreNotRoundedBeforeTheyAreAdded) {
  const int64_t T = 1024, K = 24, N = 40;
  const auto view = [](const at::Tensor& t) { return at::cat({t, t}, 1).narrow(1, 0, t.size(1)); };
  const at::Tensor x = reference_values({T, K}, 1).to(at::kBFloat16);
  const at::Tensor dy = reference_values({T, N}, 2).to(at::kBFloat16);
  const at::Tensor want = x.to(at::kDouble).t().mm(dy.to(at::kDouble));
  for (const auto form : {ProductForm::stationary, ProductForm::summa}) {
    on_mesh(tensor_mesh(2, 2, 1), [&](Comm& comm) {
      const TensorProducts products(comm, form);
      const at::Tensor dw = products.atb(view(tokens_part(comm, x)), view(tokens_part(comm, dy)), K);
      EXPECT_EQ(dw.scalar_type(), at::kFloat);
      EXPECT_LE(relative_error(dw, weight_part(comm, want)), 1024 * std::ldexp(1.0, -24));
    });
  }
}

// The controls, up to NeedEveryRankInItsPlace: without the sum over depth, with rows and columns exchanged, or with
// tokens in another order, the results are wrong.
TEST(TensorProducts, NeedTheSumOverDepth) {
  const Matrices m = exact_matrices(48, 12, 24);
  on_mesh(tensor_mesh(2, 2, 2), [&](Comm& comm) {
    const Products p = products_on(comm, ProductForm::stationary, m);
    if (comm.position(kRows) > 0 || comm.position(kColumns) > 0) return;
    EXPECT_EQ(p.dw_of_layer[0][0].item<double>(), comm.position(kDepths) == 0 ? 6 : -1);
    EXPECT_EQ(p.dw[0][0].item<double>(), 5);
    EXPECT_FALSE((p.dw / 2).equal(weight_part(comm, m.x_TK.t().mm(m.dy_TN)))) << "no mean";
  });
}

TEST(TensorProducts, NeedTheSumOverAnyDepth) {
  const Matrices m = exact_matrices(48, 12, 24);
  for (const auto form : {ProductForm::stationary, ProductForm::summa}) {
    for (const int depth : {3, 4}) {
      on_mesh(tensor_mesh(2, 2, depth), [&](Comm& comm) {
        const Products p = products_on(comm, form, m);
        const at::Tensor whole = weight_part(comm, m.x_TK.t().mm(m.dy_TN));
        EXPECT_TRUE(p.dw.equal(whole)) << depth;
        EXPECT_FALSE(p.dw_of_layer.equal(whole)) << depth;
        EXPECT_FALSE((p.dw / depth).equal(whole)) << depth;
      });
    }
  }
}

// K must be the full extent of the dim that the product contracts or restores.
TEST(TensorProducts, RefuseAnExtentThatIsNotTheirs) {
  const Matrices m = exact_matrices(48, 12, 24);
  for (const auto form : {ProductForm::stationary, ProductForm::summa}) {
    on_mesh(tensor_mesh(2, 2, 1), [&](Comm& comm) {
      const TensorProducts products(comm, form);
      const at::Tensor x = tokens_part(comm, m.x_TK), w = weight_part(comm, m.w_KN), dy = tokens_part(comm, m.dy_TN);
      for (const int64_t K : {8, 16}) {
        EXPECT_THROW(products.ab(x, w, K), LogicError);
        EXPECT_THROW(products.abt(dy, w, K), LogicError);
        EXPECT_THROW(products.atb(x, dy, K), LogicError);
      }
    });
  }
}

TEST(TensorProducts, NeedTheRightRankOrder) {
  const Matrices m = exact_matrices(48, 12, 24);
  const at::Tensor y = m.x_TK.mm(m.w_KN);
  for (const auto form : {ProductForm::stationary, ProductForm::summa}) {
    std::atomic<int> swapped = 0, reordered = 0;
    on_mesh(tensor_mesh(2, 2, 2), [&](Comm& comm) {
      const TensorProducts products(comm, form);
      const at::Tensor x = tokens_part(comm, m.x_TK), w = weight_part(comm, m.w_KN);
      const Range rows = shard(12, 2, comm.position(kColumns)), columns = shard(24, 2, comm.position(kRows));
      const at::Tensor other = m.w_KN.slice(0, rows.begin, rows.end).slice(1, columns.begin, columns.end);
      swapped += !products.ab(x, other, 12).equal(tokens_part(comm, y));
      const int i = comm.position(kRows), k = comm.position(kDepths);
      const Range tokens = shard(48, 4, i * 2 + k);  // wrong order: depth inside row
      reordered +=
          !products.ab(x, w, 12).equal(y.slice(0, tokens.begin, tokens.end)
                                           .slice(1, comm.position(kColumns) * 12, comm.position(kColumns) * 12 + 12));
    });
    EXPECT_EQ(swapped, 8);
    EXPECT_EQ(reordered, 4) << "where row and depth are not the same";
  }
}

// For random bfloat16 matrices, no mesh has a larger error against float64 than one rank's product, except where
// partial sums are sent as bfloat16 (dx).
TEST(TensorProducts, OfRandomNumbersAreAsExactAsOneRanks) {
  const auto random = [](int64_t rows, int64_t columns, uint64_t seed) {
    auto generator = at::detail::createCPUGenerator(seed);
    return at::randn({rows, columns}, generator, at::kDouble).to(at::kBFloat16);
  };
  const Matrices m{random(48, 4096, 1), random(4096, 24, 2), random(48, 24, 3)};
  const auto exact = [](const at::Tensor& t) { return t.to(at::kDouble); };
  const auto error = [&](const at::Tensor& have, const at::Tensor& want) {
    return (exact(have) - want).norm().item<double>();
  };
  const at::Tensor y = exact(m.x_TK).mm(exact(m.w_KN)), dw = exact(m.x_TK).t().mm(exact(m.dy_TN));
  const double one = error(m.x_TK.mm(m.w_KN), y),
               one_dw = error(m.x_TK.to(at::kFloat).t().mm(m.dy_TN.to(at::kFloat)), dw);
  const at::Tensor rounded = at::zeros(y.sizes(), at::kBFloat16);  // the control: sums in bfloat16
  for (const SummaPanel& p : summa_panels(4096, 4, 4)) {
    rounded.add_(m.x_TK.narrow(1, p.all.begin, p.all.size()).mm(m.w_KN.narrow(0, p.all.begin, p.all.size())));
  }
  EXPECT_GT(error(rounded, y), 1.1 * one);
  // The summands of dx are rounded to bfloat16 before they are added, which adds at most the same error again. The
  // control accumulates in bfloat16 throughout.
  const at::Tensor dx = exact(m.dy_TN).mm(exact(m.w_KN).t());
  const double dx_bound = 1.1 * std::sqrt(2.0) * error(m.dy_TN.mm(m.w_KN.t()), dx);
  const at::Tensor rounded_dx = at::zeros(dx.sizes(), at::kBFloat16);
  for (int column = 0; column < 6; ++column) {
    rounded_dx.add_(m.dy_TN.narrow(1, 4 * column, 4).mm(m.w_KN.narrow(1, 4 * column, 4).t()));
  }
  EXPECT_GT(error(rounded_dx, dx), dx_bound);
  for (const MeshCase& c : all_meshes()) {
    std::atomic<double> squares = 0, dx_squares = 0, dw_squares = 0;
    on_mesh(tensor_mesh(c.rows, c.columns, c.depth), [&](Comm& comm) {
      const Products p = products_on(comm, c.form, m);
      const double own = error(p.y, tokens_part(comm, y)), own_dx = error(p.dx, tokens_part(comm, dx)),
                   own_dw = error(p.dw, weight_part(comm, dw));
      squares.fetch_add(own * own);
      dx_squares.fetch_add(own_dx * own_dx);
      dw_squares.fetch_add(own_dw * own_dw / c.depth);
    });
    EXPECT_LE(std::sqrt(squares), 1.1 * one) << name_of(c);
    EXPECT_LE(std::sqrt(dx_squares), dx_bound) << name_of(c);
    EXPECT_LE(std::sqrt(dw_squares), 1.1 * one_dw) << name_of(c);
  }
}

// Elements received, averaged over ranks, from the byte counters of all senders; and the calls of rank 0.
struct Counted {
  double elements = 0;
  int64_t calls = 0;
};
Counted counted(const MeshCase& c, const std::function<void(Comm&)>& work, int64_t element_bytes = 8) {
  std::atomic<int64_t> bytes = 0, calls = 0;
  const Mesh mesh = tensor_mesh(c.rows, c.columns, c.depth);
  on_mesh(mesh, [&](Comm& comm) {
    work(comm);
    bytes += comm.total_traffic().bytes.sent;
    if (comm.rank() == 0) calls = comm.total_traffic().calls;
  });
  return {static_cast<double>(bytes) / static_cast<double>(element_bytes * mesh.size()), calls};
}

TEST(TensorProducts, SendTheElementsOfTheFormulas) {
  const Matrices m = exact_matrices(48, 12, 24);
  struct Case {
    MeshCase mesh;
    double elements;  // elements received for each product
    int64_t calls;
  };
  const auto summa = ProductForm::summa;
  for (const Case& c : {Case{{2, 2, 1, summa}, 216, 4}, {{2, 2, 2, summa}, 144, 4}, {{3, 3, 1, summa}, 192, 6},
                        {{3, 3, 2, summa}, 128, 6}, {{4, 4, 1, summa}, 162, 8}, {{2, 2, 4, summa}, 108, 4},
                        {{2, 2, 2}, 144, 2}, {{2, 3, 2}, 144, 2}, {{1, 4, 2}, 216, 1}, {{4, 1, 2}, 216, 1}}) {
    for (const char* product : {"ab", "abt", "atb"}) {
      const Counted have = counted(c.mesh, [&](Comm& comm) {
        const TensorProducts products(comm, c.mesh.form);
        const at::Tensor x = tokens_part(comm, m.x_TK), w = weight_part(comm, m.w_KN), dy = tokens_part(comm, m.dy_TN);
        if (product == std::string("ab")) products.ab(x, w, 12);
        if (product == std::string("abt")) products.abt(dy, w, 12);
        if (product == std::string("atb")) products.atb(x, dy, 12);
      });
      EXPECT_DOUBLE_EQ(have.elements, c.elements) << name_of(c.mesh) << " " << product;
      EXPECT_EQ(have.calls, c.calls) << name_of(c.mesh) << " " << product;
    }
  }
}

}  // namespace
}  // namespace orthant::products_test
