// Measures the three products of a tensor mesh with one row, whose operands move in panels. It also measures the same
// products without messages, and the same messages without products. Prints one line of JSON per form and product;
// benchmarks/tensor/overlap.py runs it on emulated hosts and makes a table.
//
//   tensor_products --ranks 4 --forms stationary,summa --products ab,abt --tokens 2048 --in 512 --out 2048 --turns 5
//
// --tokens, --in and --out are sizes of the unsharded matrices, in float32. A product has at most eight panels of at
// least --panel-bytes bytes (stationary), or one panel per column (summa). The measured steps take turns, each from a
// barrier to the end of the slowest rank; results are medians.
#include <ATen/ATen.h>

#include "benchmarks/ranks.h"
#include "model/linear.h"
#include "parallel/tensor/products.h"
#include "parallel/tensor/stationary.h"

namespace orthant {
namespace {


struct Moving {
  at::Tensor panel;
  Work work;
  at::Tensor wait() {
    work.wait();
    return panel;
  }
};

/// One of the products ab = x w, abt = dy w^T and atb = x^T dy, and its two halves, computation and transfer. The
/// operands are x [T,K], w [K,N] and dy [T,N], of which this rank has one column's shards.
class Case {
 public:
  Case(Comm& comm, ProductForm form, std::string name, int64_t tokens, int64_t in, int64_t out, int64_t panel_bytes)
      : comm_(comm), form_(form), name_(std::move(name)), in_(in), columns_(comm.group_size(kOverColumns)),
        mesh_(comm, {.columns = columns_, .panel_bytes = panel_bytes}),
        panels_(mesh_, 1, tokens, in, name_ == "abt", 4),
        full_x_(at::randn({tokens, in}, at::detail::createCPUGenerator(1), at::kFloat)),
        w_(at::randn({in, own(out).size()}, at::detail::createCPUGenerator(2 + comm.rank()), at::kFloat)),
        dy_(at::randn({tokens, own(out).size()}, at::detail::createCPUGenerator(99 + comm.rank()), at::kFloat)),
        x_(full_x_.narrow(1, own(in).begin, own(in).size()).contiguous()) {}

  at::Tensor both() const {
    const TensorProducts products(comm_, form_, mesh_.plan().panel_bytes);
    if (name_ == "ab") return products.ab(x_, w_, in_);
    return name_ == "abt" ? products.abt(dy_, w_, in_) : products.atb(x_, dy_, in_);
  }

  /// Multiplies the same panels without messages. The result for abt is this column's summand only.
  at::Tensor compute() const { return form_ == ProductForm::summa ? summa_compute() : stationary_compute(); }
  void transfer() const { form_ == ProductForm::summa ? summa_transfer() : stationary_transfer(); }
  double flops() const { return 2.0 * static_cast<double>(full_x_.size(0) * in_ * w_.size(1)); }

 private:
  Range own(int64_t extent) const { return shard(extent, columns_, comm_.position(kOverColumns)); }
  std::vector<SummaPanel> summa_panels() const { return orthant::summa_panels(in_, columns_, 1); }

  std::vector<int64_t> result_sizes() const {
    return {name_ == "atb" ? in_ : full_x_.size(0), name_ == "abt" ? in_ : w_.size(1)};
  }

  at::Tensor stationary_compute() const {
    const at::Tensor sum = at::empty(result_sizes(), at::kFloat);
    for (const Range& panel : panels_.all()) {
      const at::Tensor x = full_x_.narrow(0, panel.begin, panel.size()), dy = dy_.narrow(0, panel.begin, panel.size());
      at::Tensor rows = name_ == "atb" ? sum : sum.narrow(0, panel.begin, panel.size());
      if (name_ == "ab") at::mm_out(rows, x, w_);
      if (name_ == "abt") at::mm_out(rows, dy, w_.t());
      if (name_ == "atb") add_product(sum, x.t(), dy, panel.begin > 0);
    }
    return sum;
  }
  at::Tensor summa_compute() const {
    const at::Tensor sum = at::zeros(result_sizes(), at::kFloat);
    for (const SummaPanel& p : summa_panels()) {
      const at::Tensor x = full_x_.narrow(1, p.all.begin, p.all.size()).contiguous();
      const at::Tensor w = w_.narrow(0, p.all.begin, p.all.size());
      if (name_ == "ab") add_product(sum, x, w, true);
      if (name_ == "abt") sum.narrow(1, p.all.begin, p.all.size()).copy_(dy_.mm(w.t()));
      if (name_ == "atb") add_product(sum.narrow(0, p.all.begin, p.all.size()), x.t(), dy_, false);
    }
    return sum;
  }

  void stationary_transfer() const {
    if (name_ == "abt") {
      StreamSum sums(panels_);
      for (const Range& panel : panels_.all()) sums.send(panel, full_x_.narrow(0, panel.begin, panel.size()));
      sums.finish();
      return;
    }
    for_panels(
        panels_.all(), [&](const Range& panel) { return panels_.gather(x_.unsqueeze(0), panel); },
        [](const Range&, auto arrive) { arrive(); });
  }
  void summa_transfer() const {
    const bool sums = name_ == "abt";
    for_panels(
        summa_panels(),
        [&](const SummaPanel& p) {
          Moving moving{at::empty({full_x_.size(0), p.all.size()}, at::kFloat), Work()};
          moving.work = sums ? comm_.reduce(moving.panel, kOverColumns, p.column)
                             : comm_.broadcast(moving.panel, kOverColumns, p.column);
          return moving;
        },
        [](const SummaPanel&, auto arrive) { arrive(); });
  }

  Comm& comm_;
  const ProductForm form_;
  const std::string name_;
  const int64_t in_;
  const int columns_;
  const TensorMesh mesh_;
  const TokenPanels panels_;
  const at::Tensor full_x_, w_, dy_, x_;
};

int64_t sent_by(Comm& comm, const std::function<void()>& step) {
  const int64_t before = comm.total_traffic().bytes.sent;
  step();
  return comm.total_traffic().bytes.sent - before;
}

void measure(const Settings& settings, Comm& comm) {
  const at::NoGradGuard no_grad;
  for (const auto& form : split(settings.text("forms"), ',')) {
    if (form != "stationary" && form != "summa") throw ConfigError("--forms " + form + ": stationary or summa");
    for (const auto& product : split(settings.text("products"), ',')) {
      if (product != "ab" && product != "abt" && product != "atb") {
        throw ConfigError("--products " + product + ": ab, abt or atb");
      }
      const Case c(comm, form == "summa" ? ProductForm::summa : ProductForm::stationary, product,
                   settings.integers("tokens")[0], settings.integers("in")[0], settings.integers("out")[0],
                   settings.integers("panel-bytes")[0]);
      at::Tensor both, alone;
      const std::vector<std::pair<std::string, std::function<void()>>> steps = {
          {"both", [&] { both = c.both(); }},
          {"compute", [&] { alone = c.compute(); }},
          {"transfer", [&] { c.transfer(); }}};
      std::map<std::string, std::vector<double>> times_s;
      for (int turn = -1; turn < settings.number("turns"); ++turn) {  // the first one warms up
        for (const auto& [name, step] : steps) {
          const double seconds = time_step(comm, step);
          if (turn >= 0) times_s[name].push_back(seconds);
        }
      }
      // The halves do the same work as the product: equal results, and equal bytes sent. abt is not compared, because
      // its computation alone does not sum over columns.
      if (product != "abt") ORTHANT_CHECK(both.equal(alone), form, product);
      const int64_t sent = sent_by(comm, [&] { c.transfer(); });
      ORTHANT_CHECK(sent_by(comm, [&] { both = c.both(); }) == sent, form, product, sent);
      if (comm.rank() != 0) continue;
      std::string figures;
      for (auto& [name, all] : times_s) figures += fmt::format(R"(, "{}_ms": {:.4f})", name, 1e3 * quantile(all, 0.5));
      fmt::print(R"({{"form": "{}", "product": "{}", "columns": {}, "flops": {:.6g}, "sent_bytes": {}{}}})"
                 "\n",
                 form, product, comm.mesh().size(), c.flops(), sent, figures);
      std::fflush(stdout);
    }
  }
}

int run(int argc, char** argv) {
  const Settings settings(argc, argv, {{"ranks", "4"}, {"transport", "auto"}, {"forms", "stationary,summa"},
                                       {"products", "ab,abt,atb"}, {"tokens", "2048"}, {"in", "512"}, {"out", "2048"},
                                       {"panel-bytes", std::to_string(TensorPlan{}.panel_bytes)}, {"turns", "5"}});
  return measure_on_ranks(argc, argv, static_cast<int>(settings.number("ranks")), settings.text("transport"),
                          [&](Comm& comm) { measure(settings, comm); },
                          [](const Launch& launch) {
                            return Mesh({{kColumn, launch.world_size}, {kRow, 1},
                                         {kDepth, 1}});
                          });
}

}  // namespace
}  // namespace orthant

int main(int argc, char** argv) { return orthant::run_benchmark(argc, argv, orthant::run); }
