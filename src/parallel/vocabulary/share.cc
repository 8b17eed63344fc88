#include "parallel/vocabulary/share.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "base/errors.h"
#include "base/labels.h"
#include "model/element.h"
#include "model/linear.h"
#include "model/primitives.h"

namespace orthant {
namespace {

at::Tensor wide_like(const at::Tensor& t, at::IntArrayRef shape) {
  return at::empty(shape, t.options().dtype(wide(t.scalar_type())));
}

at::Tensor column(const at::Tensor& numbers_N) { return numbers_N.unsqueeze(1); }

void check_labels(const at::Tensor& labels, int64_t vocabulary) {
  const at::Tensor bad = labels.ne(kIgnoredLabel) & (labels.lt(0) | labels.ge(vocabulary));
  const at::Tensor where = bad.nonzero().flatten();
  if (where.numel() == 0) return;
  const auto first = where[0].item<int64_t>();
  throw DataError(fmt::format("label {} at position {} of the microbatch is outside the vocabulary of {}",
                              labels[first].item<int64_t>(), first, vocabulary));
}

// The factor of each token's loss, float64; 0 where the label is ignored.
at::Tensor loss_factors(const OutputTokens& tokens) {
  const auto options = tokens.labels_N.options().dtype(at::kDouble);
  at::Tensor g = at::full(tokens.labels_N.sizes(), tokens.loss_scale, options);
  if (tokens.weights_N.defined()) g.mul_(tokens.weights_N);
  return g.masked_fill_(tokens.labels_N.eq(kIgnoredLabel), 0.0);
}

// -inf of no logits at all, from which nothing is ever subtracted.
at::Tensor row_maximum(const at::Tensor& z) {
  return z.size(1) > 0 ? z.amax(1) : at::full({z.size(0)}, -INFINITY, z.options());
}

at::Tensor log_sum(const WholeSoftmax& whole) { return whole.sum_N.log() + whole.maximum_N; }

// a b; 0 of no rows.
void product(const at::Tensor& sum, const at::Tensor& a, const at::Tensor& b) {
  if (a.size(1) == 0) sum.zero_();
  if (a.size(1) > 0) add_product(sum, a, b, false);
}

// What exponentials under one maximum are multiplied by for another; 0 where there are none.
at::Tensor rescaling(const at::Tensor& from, const at::Tensor& to) {
  return (from - to).exp_().masked_fill_(from.eq(-INFINITY), 0.0);
}

}  // namespace

at::Tensor joined_statistics(const at::Tensor& statistics) {
  const at::Tensor all = statistics.to(at::kDouble), joined = at::zeros_like(all[0]);
  joined[0].copy_(all.select(1, 0).amax(0));
  for (int64_t rank = 0; rank < all.size(0); ++rank) {
    const at::Tensor own = all[rank];
    joined[1].add_(own[1] * rescaling(own[0], joined[0]));
    joined.narrow(0, 2, own.size(0) - 2).add_(own.narrow(0, 2, own.size(0) - 2));
  }
  return joined;
}

WholeSoftmax whole_softmax(const at::Tensor& statistics, const OutputLoss& loss, int64_t vocabulary,
                           const OutputTokens& tokens) {
  const at::Tensor all = joined_statistics(statistics);
  WholeSoftmax whole{.maximum_N = all[0], .sum_N = all[1], .picked_N = all[2]};
  at::Tensor losses = whole.sum_N.log() + (whole.maximum_N - whole.picked_N);
  if (loss.smoothing > 0) {
    losses.add_(loss.smoothing * (whole.picked_N - all[3] / static_cast<double>(vocabulary)));
  }
  if (loss.z_weight > 0) losses.add_(loss.z_weight * log_sum(whole).square());
  whole.losses_N = losses.mul_(loss_factors(tokens)).masked_fill_(tokens.labels_N.eq(kIgnoredLabel), 0.0);
  return whole;
}

OutputShare::OutputShare(const VocabularySlice& slice, const OutputLoss& loss, const Weight& head, at::Tensor x,
                         OutputTokens tokens, SliceMesh mesh)
    : real_(slice.real()), vocabulary_(slice.vocabulary), loss_(loss), head_(head), mesh_(std::move(mesh)),
      sequences_(x.size(0)), x_NC_(mesh_.gather(x.detach())), tokens_(std::move(tokens)) {
  ORTHANT_CHECK(head.value.size(0) == slice.rows.size(), head.value.size(0), slice.rows.size());
  load_weight();
  check_labels(tokens_.labels_N, vocabulary_);
  const at::Tensor& labels = tokens_.labels_N;
  hit_ = labels.ge(real_.begin).logical_and_(labels.lt(real_.end)).nonzero().squeeze(1);
  row_ = labels.index_select(0, hit_).sub_(real_.begin);
  if (!tokens_.with_gradient) return;
  exponentials_NV_ = at::empty({size(), real_.size()}, x_NC_.options());
  slope_H_ = at::ones({hit_.numel()}, x_NC_.options().dtype(wide(x_NC_.scalar_type())));
  if (loss_.softcap > 0 && loss_.smoothing > 0) slopes_NV_ = at::empty_like(exponentials_NV_);
}

void OutputShare::load_weight() { w_VC_ = mesh_.whole(head_).narrow(0, 0, real_.size()); }
void OutputShare::put_weight_away() {
  if (!mesh_.alone()) w_VC_.reset();
}

template <class F>
void OutputShare::for_chunks(F f) const {
  const int64_t chunk = loss_chunk_rows(std::max<int64_t>(real_.size(), 1));
  for (int64_t begin = 0; begin < size(); begin += chunk) f(Range{begin, std::min(begin + chunk, size())});
}

at::Tensor OutputShare::logits(const Range& tokens) const {
  const at::Tensor z = wide_like(x_NC_, {tokens.size(), real_.size()});
  if (real_.size() == 0) return z;
  add_product(z, x_NC_.narrow(0, tokens.begin, tokens.size()), w_VC_.t(), false);
  if (loss_.softcap > 0) z.div_(loss_.softcap).tanh_().mul_(loss_.softcap);
  return z;
}

at::Tensor OutputShare::maxima() {
  logits_NV_ = logits({0, size()});
  return mesh_.of_columns(row_maximum(logits_NV_)).amax(0);
}

at::Tensor OutputShare::exponentials(const at::Tensor& maximum_N) {
  top_N_ = maximum_N;
  const at::Tensor statistics = at::zeros({loss_.statistics() - 1, size()}, logits_NV_.options());
  for_chunks([&](const Range& tokens) {
    const auto part = [&](const at::Tensor& t, int64_t dim) { return t.narrow(dim, tokens.begin, tokens.size()); };
    fill(tokens, part(logits_NV_, 0), part(top_N_, 0), part(statistics, 1));
  });
  logits_NV_.reset();
  return mesh_.of_columns(statistics).sum(0);
}

at::Tensor OutputShare::statistics() {
  const at::Tensor statistics = wide_like(x_NC_, {loss_.statistics(), size()}).zero_();
  top_N_ = statistics[0];
  for_chunks([&](const Range& tokens) {
    const at::Tensor z = logits(tokens);
    const at::Tensor some = statistics.narrow(1, tokens.begin, tokens.size());
    some[0].copy_(row_maximum(z));
    fill(tokens, z, some[0], some.narrow(0, 1, loss_.statistics() - 1));
  });
  const at::Tensor all = mesh_.of_columns(statistics);
  const at::Tensor joined = all.size(0) > 1 ? joined_statistics(all).to(statistics.scalar_type()) : statistics;
  place_top_N_ = joined[0];
  return joined;
}

// Overwrites z.
void OutputShare::fill(const Range& tokens, const at::Tensor& z, const at::Tensor& top, const at::Tensor& statistics) {
  const at::Tensor here = (hit_.ge(tokens.begin) & hit_.lt(tokens.end)).nonzero().squeeze(1);
  const at::Tensor hit = hit_.index_select(0, here).sub_(tokens.begin), row = row_.index_select(0, here);
  const c10::List<std::optional<at::Tensor>> labels({hit, row});
  const at::Tensor picked = z.index(labels);
  if (loss_.smoothing > 0) statistics[2].copy_(z.sum(1));
  at::Tensor slopes;
  if (loss_.softcap > 0 && tokens_.with_gradient) slopes = (z / loss_.softcap).square_().neg_().add_(1);
  const at::Tensor e = z.sub_(column(top)).exp_();
  statistics[0].copy_(e.sum(1));
  statistics[1].index_copy_(0, hit, picked);
  if (!tokens_.with_gradient) return;
  if (slopes.defined()) {
    e.mul_(slopes);
    slope_H_.index_copy_(0, here, slopes.index(labels));
    if (slopes_NV_.defined()) slopes_NV_.narrow(0, tokens.begin, tokens.size()).copy_(slopes);
  }
  e.index_put_(labels, at::zeros_like(picked));
  exponentials_NV_.narrow(0, tokens.begin, tokens.size()).copy_(e);
}

OutputShare::Factors OutputShare::factors(const WholeSoftmax& whole, const at::Tensor& top_N) const {
  const at::Tensor g = loss_factors(tokens_);
  const at::Tensor z_factor = loss_.z_weight > 0 ? 1 + 2 * loss_.z_weight * log_sum(whole) : at::ones_like(g);
  const auto p = [&](const at::Tensor& z) { return (z - whole.maximum_N).exp().div_(whole.sum_N).mul_(z_factor); };
  const auto type = wide(x_NC_.scalar_type());
  return {.exponentials_N = (p(top_N.to(at::kDouble)) * g).to(type),
          .uniform_N = (g * (loss_.smoothing / static_cast<double>(vocabulary_))).to(type),
          .picked_N = (p(whole.picked_N) - (1 - loss_.smoothing)).mul_(g).to(type)};
}

at::Tensor OutputShare::picked_of(const Factors& f) const { return f.picked_N.index_select(0, hit_).mul_(slope_H_); }

void OutputShare::multiply() {
  multiplied_ = true;
  product_NC_ = wide_like(x_NC_, x_NC_.sizes());
  product(product_NC_, exponentials_NV_, w_VC_);
  if (loss_.smoothing > 0 && slopes_NV_.defined()) {
    uniform_NC_ = at::empty_like(product_NC_);
    product(uniform_NC_, slopes_NV_, w_VC_);
  } else if (loss_.smoothing > 0) {
    uniform_NC_ = at::empty({1, w_VC_.size(1)}, product_NC_.options());
    product(uniform_NC_, at::ones({1, w_VC_.size(0)}, w_VC_.options()), w_VC_);
  }
  if (!mesh_.alone()) settle_products();
}

// Sums over columns, each of the part that is here. Which column has a label's row others do not know.
void OutputShare::settle_products() {
  const auto settle = [&](const at::Tensor& summand) {
    return mesh_.settle(summand.to(x_NC_.scalar_type()).contiguous(), sequences_);
  };
  product_NC_ = settle(product_NC_.mul_(column(rescaling(top_N_, place_top_N_))));
  if (uniform_NC_.defined()) uniform_NC_ = settle(uniform_NC_.expand_as(x_NC_));
  const at::Tensor rows = w_VC_.index_select(0, row_).mul_(column(slope_H_.to(w_VC_.scalar_type())));
  picked_NC_ = settle(at::zeros_like(x_NC_).index_copy_(0, hit_, rows));
}

at::Tensor OutputShare::input_gradient(const WholeSoftmax& whole) {
  const Factors f = factors(whole, place_top_N_);
  const auto type = wide(x_NC_.scalar_type());
  const auto part = [&](const at::Tensor& numbers) { return column(mesh_.part(numbers, sequences_)); };
  at::Tensor dx = product_NC_.to(type).mul_(part(f.exponentials_N));
  if (uniform_NC_.defined()) dx.addcmul_(part(f.uniform_N), uniform_NC_.to(type), -1);
  if (mesh_.alone()) {
    dx.index_add_(0, hit_, w_VC_.index_select(0, row_).to(type).mul_(column(picked_of(f))));
  } else {
    dx.addcmul_(picked_NC_.to(type), part(f.picked_N));
  }
  dx.masked_fill_(part(tokens_.labels_N.eq(kIgnoredLabel)), 0.0);
  product_NC_.reset(), uniform_NC_.reset(), picked_NC_.reset();
  return dx.to(x_NC_.scalar_type());
}

// In place of the exponentials, where these are wide.
at::Tensor OutputShare::logit_gradient(const Range& tokens, const Factors& f) const {
  const auto part = [&](const at::Tensor& t) { return t.narrow(0, tokens.begin, tokens.size()); };
  const at::Tensor d = part(exponentials_NV_).to(wide(x_NC_.scalar_type()));
  d.mul_(column(part(f.exponentials_N)));
  at::Tensor picked = picked_of(f);
  if (loss_.smoothing > 0) {
    const at::Tensor uniform = column(part(f.uniform_N));
    if (slopes_NV_.defined())
      d.addcmul_(uniform, part(slopes_NV_), -1);
    else
      d.sub_(uniform);
    picked = picked - f.uniform_N.index_select(0, hit_) * slope_H_;
  }
  const at::Tensor here = (hit_.ge(tokens.begin) & hit_.lt(tokens.end)).nonzero().squeeze(1);
  const c10::List<std::optional<at::Tensor>> labels(
      {hit_.index_select(0, here).sub_(tokens.begin), row_.index_select(0, here)});
  d.index_put_(labels, picked.index_select(0, here));
  d.masked_fill_(column(part(tokens_.labels_N).eq(kIgnoredLabel)), 0.0);
  return d.to(x_NC_.scalar_type());
}

at::Tensor OutputShare::gradients(const WholeSoftmax& whole) {
  ORTHANT_CHECK(tokens_.with_gradient && !head_.defers());
  const Factors f = factors(whole, top_N_);
  const bool with_input = !multiplied_;
  if (with_input && !w_VC_.defined()) load_weight();
  const at::Tensor dx = with_input ? at::empty_like(x_NC_) : at::Tensor();
  const at::Tensor sum = mesh_.begin_gradient(head_, size() > 0), dw = sum.narrow(0, 0, real_.size());
  for_chunks([&](const Range& tokens) {
    const at::Tensor d = logit_gradient(tokens, f);
    if (with_input) {
      at::Tensor some = dx.narrow(0, tokens.begin, tokens.size());
      at::mm_out(some, d, w_VC_);
    }
    if (real_.size() > 0) add_product(dw, d.t(), x_NC_.narrow(0, tokens.begin, tokens.size()), true);
  });
  exponentials_NV_.reset(), slopes_NV_.reset();
  mesh_.finish_gradient(head_, sum);
  return with_input ? mesh_.settle(dx, sequences_) : dx;
}

}  // namespace orthant
