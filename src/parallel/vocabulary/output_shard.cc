// The softmax of a shard: the numbers that it keeps from S to T, and their rounding.
//
// Let y = x W^T over the rank's rows, z = cap(y) and top the maximum of each token's z. From S to T the object keeps
// the exponentials e = exp(z - top), times the derivative of z if z is capped: N V/p numbers in the products' dtype.
// It keeps nothing else of that size, except the derivatives if smoothing needs them. Keeping logits would be worse:
// rounding them to bfloat16 costs 2^-9 |z| of the probability, rounding e costs 2^-9. Keeping only statistics would
// need a fourth product to recompute the logits. Wider numbers live for a chunk of tokens, or share the memory of e. In
// the naive order the logits of all tokens live from S to Z.
//
// At the label, p - 1 cancels; e is 0 there and p - 1 is computed separately, in float32 or float64. Factors of tokens
// multiply x and sums over rows (N C numbers), never e. So e is written once, in the pass that sums it, and read by two
// products.
//
// With a tensor mesh for each pipeline rank (slice_mesh.h), the object belongs to one rank of the mesh. Each column
// sends to other pipeline ranks the joined statistics of all columns, and its shard of the sum over columns of the
// gradient of x. Messages within the mesh, for N tokens: x and statistics as all-gathers over columns, each product for
// the gradient of x as a reduce-scatter. Algorithm 2 sums two products before the factors of tokens are known: the one
// with exponentials and the labels' rows. Rows all-gather the weight and reduce-scatter its gradient. All of them run
// inside S, Z and T; messages between pipeline ranks are as without the mesh, each rank sending its shard.
#include "parallel/vocabulary/output_shard.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "base/errors.h"
#include "base/labels.h"
#include "model/device_kernels.h"
#include "model/element.h"
#include "model/linear.h"
#include "model/loss.h"
#include "model/primitives.h"
#include "model/token_checks.h"
#include "parallel/tensor/softmax_statistics.h"

namespace orthant {
namespace {

at::Tensor wide_like(const at::Tensor& t, at::IntArrayRef shape) {
  return at::empty(shape, t.options().dtype(wide(t.scalar_type())));
}

at::Tensor column(const at::Tensor& numbers_N) { return numbers_N.unsqueeze(1); }

// Factor of each token's loss, float64; 0 for an ignored label.
at::Tensor loss_factors(const OutputTokens& tokens) {
  const auto options = tokens.labels_N.options().dtype(at::kDouble);
  at::Tensor g = at::full(tokens.labels_N.sizes(), tokens.loss_scale, options);
  if (tokens.weights_N.defined()) g.mul_(tokens.weights_N);
  return g.masked_fill_(tokens.labels_N.eq(kIgnoredLabel), 0.0);
}

at::Tensor log_sum(const FullSoftmax& whole) { return whole.sum_N.log() + whole.maximum_N; }

// sum = a b; 0 if the contracted dim is empty.
void product(const at::Tensor& sum, const at::Tensor& a, const at::Tensor& b) {
  if (a.size(1) == 0) sum.zero_();
  if (a.size(1) > 0) add_product(sum, a, b, false);
}

}  // namespace

FullSoftmax compute_full_softmax(const at::Tensor& statistics, const OutputLoss& loss, int64_t vocabulary,
                                 const OutputTokens& tokens) {
  const at::Tensor all = merge_statistics(statistics);
  FullSoftmax whole{.maximum_N = all[0], .sum_N = all[1], .picked_N = all[2]};
  at::Tensor losses = whole.sum_N.log() + (whole.maximum_N - whole.picked_N);
  if (loss.smoothing > 0) {
    losses.add_(loss.smoothing * (whole.picked_N - all[3] / static_cast<double>(vocabulary)));
  }
  if (loss.z_weight > 0) losses.add_(loss.z_weight * log_sum(whole).square());
  whole.losses_N = losses.mul_(loss_factors(tokens)).masked_fill_(tokens.labels_N.eq(kIgnoredLabel), 0.0);
  return whole;
}

OutputShard::OutputShard(const VocabularySlice& slice, const OutputLoss& loss, const Weight& head, at::Tensor x,
                         OutputTokens tokens, SliceMesh mesh)
    : real_(slice.real()),
      vocabulary_(slice.vocabulary),
      loss_(loss),
      head_(head),
      mesh_(std::move(mesh)),
      sequences_(x.size(0)),
      x_NC_(mesh_.gather(x.detach())),
      tokens_(std::move(tokens)) {
  ORTHANT_CHECK(head.value.size(0) == slice.rows.size(), head.value.size(0), slice.rows.size());
  gather_weight();
  check_labels(tokens_.labels_N, vocabulary_);
  if (!tokens_.with_gradient) return;
  const at::Tensor& labels = tokens_.labels_N;
  label_rows_.emplace(labels, real_);
  exponentials_NV_ = at::empty({size(), real_.size()}, x_NC_.options());
  if (loss_.softcap > 0) label_slopes_N_ = at::empty({size()}, labels.options().dtype(at::kDouble));
  if (loss_.kept_of_logit() == 2) slopes_NV_ = at::empty_like(exponentials_NV_);
}

void OutputShard::gather_weight() { w_VC_ = mesh_.gather_weight(head_).narrow(0, 0, real_.size()); }
void OutputShard::free_weight() {
  if (!mesh_.alone()) w_VC_.reset();
}

// Products of a range of tokens with the weight. If the kept exponentials have the same dtype, the products use their
// memory from the start.
at::Tensor OutputShard::products(const Range& tokens) const {
  const bool in_place = exponentials_NV_.defined() && exponentials_NV_.scalar_type() == wide(x_NC_.scalar_type());
  const at::Tensor y = in_place ? exponentials_NV_.narrow(0, tokens.begin, tokens.size())
                                : wide_like(x_NC_, {tokens.size(), real_.size()});
  if (real_.size() > 0) add_product(y, x_NC_.narrow(0, tokens.begin, tokens.size()), w_VC_.t(), false);
  return y;
}

at::Tensor OutputShard::maxima() {
  products_NV_ = products({0, size()});
  at::Tensor top = products_NV_.size(1) > 0 ? products_NV_.amax(1) : wide_like(x_NC_, {size()}).fill_(-INFINITY);
  if (loss_.softcap > 0) top = top.div_(loss_.softcap).tanh_().mul_(loss_.softcap);
  return mesh_.gather_columns(top).amax(0);
}

at::Tensor OutputShard::exponentials(const at::Tensor& maximum_N) {
  top_N_ = maximum_N;
  const at::Tensor statistics = wide_like(x_NC_, {loss_.statistics(), size()});
  statistics[0].copy_(maximum_N);
  keep({0, size()}, products_NV_, statistics, true);
  products_NV_.reset();
  return mesh_.gather_columns(statistics.narrow(0, 1, loss_.statistics() - 1).contiguous()).sum(0);
}

at::Tensor OutputShard::statistics() {
  const at::Tensor statistics = wide_like(x_NC_, {loss_.statistics(), size()});
  top_N_ = statistics[0];
  const int64_t chunk = loss_chunk_rows(std::max<int64_t>(real_.size(), 1), x_NC_.is_cuda());
  for (int64_t begin = 0; begin < size(); begin += chunk) {
    const Range tokens{begin, std::min(begin + chunk, size())};
    keep(tokens, products(tokens), statistics, false);
  }
  const at::Tensor all = mesh_.gather_columns(statistics);
  const at::Tensor joined = all.size(0) > 1 ? merge_statistics(all).to(statistics.scalar_type()) : statistics;
  place_top_N_ = joined[0];
  return joined;
}

// For a range of tokens: keeps the exponentials and the labels' slopes, and writes the statistics.
void OutputShard::keep(const Range& tokens, const at::Tensor& products, const at::Tensor& statistics,
                       bool has_maximum) {
  const auto part = [&](const at::Tensor& t) {
    return t.defined() ? t.narrow(0, tokens.begin, tokens.size()) : at::Tensor();
  };
  const at::Tensor told = statistics.narrow(1, tokens.begin, tokens.size());
  const at::Tensor labels = part(tokens_.labels_N).contiguous();
  const at::Tensor found = at::empty({tokens.size(), 4}, statistics.options().dtype(at::kDouble));
  if (has_maximum) found.select(1, 0).copy_(told[0]);
  by_element(x_NC_, [&]<class T>(T) {
    softmax_exponentials<T>(products.device(), {.logits = in<Wide<T>>(products),
                                                .exponentials = out<T>(part(exponentials_NV_)),
                                                .slopes = out<T>(part(slopes_NV_)),
                                                .labels = in<int64_t>(labels),
                                                .rows = tokens.size(),
                                                .vocab = real_.size(),
                                                .first = real_.begin,
                                                .has_maximum = has_maximum,
                                                .statistics = out<SoftmaxStatistics>(found),
                                                .label_slopes = out<double>(part(label_slopes_N_)),
                                                .loss = loss_});
  });
  told.copy_(found.narrow(1, 0, told.size(0)).t());
}

OutputShard::Factors OutputShard::factors(const FullSoftmax& whole, const at::Tensor& top_N) const {
  const at::Tensor g = loss_factors(tokens_);
  const at::Tensor z_factor = loss_.z_weight > 0 ? 1 + 2 * loss_.z_weight * log_sum(whole) : at::ones_like(g);
  const auto p = [&](const at::Tensor& z) { return (z - whole.maximum_N).exp().div_(whole.sum_N).mul_(z_factor); };
  const auto type = wide(x_NC_.scalar_type());
  return {.exponentials_N = (p(top_N.to(at::kDouble)) * g).to(type),
          .uniform_N = (g * (loss_.smoothing / static_cast<double>(vocabulary_))).to(type),
          .picked_N = (p(whole.picked_N) - (1 - loss_.smoothing)).mul_(g).to(type)};
}

// Multiplies rows of the labels in this rank's rows by the slopes of the labels' capped logits.
at::Tensor OutputShard::bent(at::Tensor rows_HC) const {
  if (!label_slopes_N_.defined()) return rows_HC;
  return rows_HC.mul_(column(label_rows_->select(label_slopes_N_)));
}

void OutputShard::make_products() {
  product_NC_ = wide_like(x_NC_, x_NC_.sizes());
  product(product_NC_, exponentials_NV_, w_VC_);
  if (slopes_NV_.defined()) {
    uniform_NC_ = at::empty_like(product_NC_);
    product(uniform_NC_, slopes_NV_, w_VC_);
  } else if (loss_.smoothing > 0) {
    uniform_NC_ = at::empty({1, w_VC_.size(1)}, product_NC_.options());
    product(uniform_NC_, at::ones({1, w_VC_.size(0)}, w_VC_.options()), w_VC_);
  }
}

at::Tensor OutputShard::multiply() {
  multiplied_ = true;
  make_products();
  if (!mesh_.alone()) sum_products();
  const bool fits = product_NC_.scalar_type() == x_NC_.scalar_type();
  return fits ? product_NC_ : at::empty(product_NC_.sizes(), x_NC_.options());
}

// Sums the products over columns; each rank keeps its shard. A label's row is on one column only, so these rows are
// summed too.
void OutputShard::sum_products() {
  const auto sum = [&](const at::Tensor& summand) {
    return mesh_.sum(summand.to(x_NC_.scalar_type()).contiguous(), sequences_);
  };
  product_NC_ = sum(product_NC_.mul_(column(rescaling(top_N_, place_top_N_))));
  if (uniform_NC_.defined()) uniform_NC_ = sum(uniform_NC_.expand_as(x_NC_));
  picked_NC_ = sum(label_rows_->spread(bent(label_rows_->look_up(w_VC_))));
}

// This rank's summand of the gradient of x, from the products; float32 or float64.
at::Tensor OutputShard::summand(const Factors& f) {
  const at::Tensor dx = std::exchange(product_NC_, {}).mul_(column(f.exponentials_N));
  if (uniform_NC_.defined()) dx.addcmul_(column(f.uniform_N), std::exchange(uniform_NC_, {}), -1);
  const at::Tensor rows = bent(label_rows_->look_up(w_VC_).to(dx.scalar_type()));
  label_rows_->add_to_tokens(dx, rows.mul_(column(label_rows_->select(f.picked_N))));
  return dx.masked_fill_(column(tokens_.labels_N.eq(kIgnoredLabel)), 0.0);
}

void OutputShard::input_gradient(const FullSoftmax& whole, const at::Tensor& sum) {
  const Factors f = factors(whole, place_top_N_);
  if (mesh_.alone()) {
    sum.copy_(summand(f));  // copies nothing if it is already there
    return;
  }
  const auto type = wide(x_NC_.scalar_type());
  const auto part = [&](const at::Tensor& numbers) { return column(mesh_.part(numbers, sequences_)); };
  at::Tensor dx = std::exchange(product_NC_, {}).to(type).mul_(part(f.exponentials_N));
  if (uniform_NC_.defined()) dx.addcmul_(part(f.uniform_N), std::exchange(uniform_NC_, {}).to(type), -1);
  dx.addcmul_(std::exchange(picked_NC_, {}).to(type), part(f.picked_N));
  sum.copy_(dx.masked_fill_(part(tokens_.labels_N.eq(kIgnoredLabel)), 0.0));
}

// dw += the sum over tokens of logit gradients times x. A logit's gradient is a sum of an exponential, a slope or one,
// and a one at the label, each times a factor of the token. The factors multiply x, which has fewer numbers.
void OutputShard::add_weight_gradient(const at::Tensor& dw, const Factors& f) const {
  const auto scaled = [&](const at::Tensor& factor_N) {  // in the factors' dtype
    return x_NC_.mul(column(factor_N)).masked_fill_(column(tokens_.labels_N.eq(kIgnoredLabel)), 0.0);
  };
  add_product(dw, exponentials_NV_.t(), scaled(f.exponentials_N).to(x_NC_.scalar_type()), true);
  if (slopes_NV_.defined()) {
    add_product(dw, slopes_NV_.t(), scaled(f.uniform_N).neg_().to(x_NC_.scalar_type()), true);
  } else if (loss_.smoothing > 0) {
    dw.sub_(scaled(f.uniform_N).sum(0));
  }
  const at::Tensor rows = bent(label_rows_->select(x_NC_).to(dw.scalar_type()));
  label_rows_->add_to_weight(dw, rows.mul_(column(label_rows_->select(f.picked_N))));
}

at::Tensor OutputShard::gradients(const FullSoftmax& whole) {
  ORTHANT_CHECK(tokens_.with_gradient && !head_.defers());
  const Factors f = factors(whole, top_N_);
  at::Tensor dx;
  if (!multiplied_) {
    if (!w_VC_.defined()) gather_weight();
    make_products();
    dx = summand(f).to(x_NC_.scalar_type());
  }
  const at::Tensor sum = mesh_.begin_gradient(head_, size() > 0);
  if (real_.size() > 0) add_weight_gradient(sum.narrow(0, 0, real_.size()), f);
  exponentials_NV_.reset(), slopes_NV_.reset();
  mesh_.finish_gradient(head_, sum);
  return multiplied_ ? dx : mesh_.sum(dx, sequences_);
}

}  // namespace orthant
